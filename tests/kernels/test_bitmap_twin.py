import numpy as np
import pytest
import torch
import torch_twins
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstead.kernels import bitmap

SIZES = (1, 63, 64, 65, 4096, 4097)  # one level up to 64 pages, two up to 64 * 64, then three
FOUR_LEVELS = 64**3 + 1


def empty_bitmap(num_pages):
    """All words zero, and where each level starts."""
    sizes = [-(-num_pages // 64)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 64))
    return np.zeros(sum(sizes), dtype=np.uint64), np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def words_of(pages, num_pages):
    """The bitmap of some pages, word by word as the drawing has it."""
    words, starts = empty_bitmap(num_pages)
    marked = set(pages)
    for start in starts.tolist():
        for index in marked:
            words[start + index // 64] |= np.uint64(1 << index % 64)
        marked = {index // 64 for index in marked}
    return words.tolist()


def mark(words, starts, pages):
    """Set the bits with the kernel and with its twin, which must agree."""
    twin = torch.from_numpy(words.view(np.int64).copy())
    bitmap.set_bits(words, starts, pages)
    torch_twins.set_bits(twin, torch.from_numpy(starts), torch.from_numpy(pages))
    assert twin.numpy().view(np.uint64).tolist() == words.tolist()


def lowest(words, starts, count):
    """Take pages with the kernel and with its twin, which must agree."""
    twin, twin_out = torch.from_numpy(words.view(np.int64).copy()), torch.empty(count, dtype=torch.int64)
    out = np.empty(count, dtype=np.int64)
    bitmap.take_lowest(words, starts, out)
    torch_twins.take_lowest(twin, torch.from_numpy(starts), twin_out)
    assert twin.numpy().view(np.uint64).tolist() == words.tolist()
    assert twin_out.tolist() == out.tolist()
    return out.tolist()


def mark_and_take(num_pages, data):
    """In turns, with pages wherever words and levels meet."""
    words, starts = empty_bitmap(num_pages)
    free = set()
    near = st.sampled_from([0, 63, 64, 127, 4095, 4096, 262_143, 262_144]).filter(lambda page: page < num_pages)
    page = st.one_of(near, st.integers(0, min(num_pages, 200) - 1), st.integers(0, num_pages - 1))
    for _ in range(data.draw(st.integers(1, 4))):
        new = list(dict.fromkeys(data.draw(st.lists(page, max_size=12))))
        mark(words, starts, np.array(new, dtype=np.int64))
        free |= set(new)
        assert words.tolist() == words_of(free, num_pages)
        count = data.draw(st.integers(0, len(free)))
        taken = sorted(free)[:count]
        assert lowest(words, starts, count) == taken
        free -= set(taken)
        assert words.tolist() == words_of(free, num_pages)


@pytest.mark.parametrize("num_pages", SIZES)
@settings(max_examples=40)
@given(data=st.data())
def test_the_lowest_pages_come_first(num_pages, data):
    """After any marks and takes in turn, the lowest marked pages come out and every level stays true."""
    mark_and_take(num_pages, data)


@settings(max_examples=5)
@given(data=st.data())
def test_the_lowest_pages_of_a_large_pool_come_first(data):
    """The same holds with four levels; few examples, since every comparison reads all words."""
    mark_and_take(FOUR_LEVELS, data)


@pytest.mark.parametrize("num_pages", [1, 64, 65, 130, 4097])
def test_a_full_bitmap_is_taken_to_the_last_page(num_pages):
    """All pages marked at once come back in order and leave nothing set."""
    words, starts = empty_bitmap(num_pages)
    mark(words, starts, np.arange(num_pages))
    assert lowest(words, starts, num_pages) == list(range(num_pages))
    assert not words.any()
