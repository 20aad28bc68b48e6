import pytest

from kvstead.errors import InvalidSize, LayoutError
from kvstead.pools import EntrySpec, Place


def test_a_page_has_its_entries_bytes():
    """Page bytes are entry bytes times entries a page; by default one entry, at the low end, not zeroed."""
    assert EntrySpec("full", 32, 64).page_bytes == 2048
    state = EntrySpec("state", 4096)
    assert (state.page_bytes, state.place, state.zero_on_take, state.align) == (4096, Place.LOW, False, 16)


def test_places_are_signs_in_the_order_of_the_chain():
    """Low, middle and high sort in the order of their places, and are the sign of the direction to their end."""
    assert [int(place) for place in sorted(Place)] == [-1, 0, 1]
    assert [place.name for place in sorted(Place)] == ["LOW", "MIDDLE", "HIGH"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"entry_bytes": 0}, "entry_bytes of pool 'x' is 0"),
        ({"entry_bytes": -16}, "entry_bytes of pool 'x' is -16"),
        ({"page_size": 0}, "page_size of pool 'x' is 0"),
        ({"align": 0}, "align of pool 'x' is 0"),
        ({"align": 24}, "align of pool 'x' is 24.*power of two"),
    ],
)
def test_sizes_are_positive(wrong, words):
    """Sizes below 1 and alignments that are not powers of two are refused."""
    with pytest.raises(InvalidSize, match=words):
        EntrySpec(**{"name": "x", "entry_bytes": 48, **wrong})


@pytest.mark.parametrize(("entry_bytes", "align", "padded"), [(40, 16, 48), (7, 2, 8), (1, 16, 16)])
def test_entries_keep_their_alignment(entry_bytes, align, padded):
    """An entry that would put the next one off its alignment is refused; the message says what it can be padded to."""
    with pytest.raises(LayoutError, match=rf"{entry_bytes} bytes.*multiple of {align}. Pad them to {padded} bytes"):
        EntrySpec("x", entry_bytes, align=align)
    assert EntrySpec("x", padded, align=align).page_bytes == padded


def test_a_pool_has_a_name():
    """An empty name is refused."""
    with pytest.raises(LayoutError, match="no name"):
        EntrySpec("", 16)
