import itertools

import numpy as np
import pytest
from prefix_bench import Bench
from window_tree_model import PIECE

from eviction_in_tokens import Gone, evict
from kvstead.allocators import PagedAllocator
from kvstead.errors import (
    AuditError,
    DoubleFree,
    ForeignPage,
    InvalidSize,
    LayoutError,
    LockUnderflow,
    MisalignedSegment,
    OpenGroup,
    UseAfterFree,
)
from kvstead.model.window import Window
from kvstead.prefix import Match, Namespace, PrefixTree

PAGE_SIZES = pytest.mark.parametrize("page_size", [1, 2, 3, 4, 64])
WINDOWS = [Window(span, is_chunked) for span in range(1, 10) for is_chunked in (False, True)]


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_lock_keeps_the_window_that_its_node_needs(page_size):
    """A lock of any prefix keeps its window, rounded to pages, and nothing more; an unlock lets all of it go."""
    word = "abcdefgh"
    for window, end in itertools.product(WINDOWS, range(1, 9)):
        bench = Bench(8, page_size, window=window)
        bench.cache(word)
        node = bench.match(word[:end]).node
        slots = bench.tree.slots(node).tolist()
        bench.tree.lock(node)
        first_page = window.needed_from(end * page_size) // page_size
        kept = (end - first_page) * page_size
        assert bench.tree.protected_tokens == end * page_size
        assert bench.window_counts() == (8 * page_size - kept, kept, 0)
        assert evict(bench.tree, 0, 100).num_window_tokens == 8 * page_size - kept
        assert bench.live(word) == "." * first_page + word[first_page:end] + "." * (8 - end)
        assert bench.tree.slots(node).tolist() == slots
        bench.tree.unlock(node)
        assert bench.window_counts() == (kept, 0, 8 * page_size - kept)
        bench.audit()


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_lock_that_is_loosened_keeps_the_rest_of_its_window(page_size):
    """Step by step or at once, what a lock has let go may be evicted and what it has not may not; full slots stay."""
    for span, step in itertools.product(range(1, 10), (1, 2, 3, 40)):
        bench = Bench(8, page_size, window=Window(span))
        node = bench.cache("abcdefgh").node
        bench.tree.lock(node)
        end = 8 * page_size
        since = max(0, end - span)
        for to in range(since, end + step, step):
            bench.tree.loosen(node, since, to)
            since = to
            kept = max(0, end - to // page_size * page_size)
            evict(bench.tree, 100, 100)
            assert bench.window_counts() == (0, kept, end - kept)
            assert (bench.tree.protected_tokens, bench.tree.evictable_tokens) == (end, 0)
            bench.audit()
        bench.tree.unlock(node, window_from=since)
        gone = evict(bench.tree, end)
        assert (gone.num_tokens, gone.num_window_tokens, gone.num_tombstoned) == (end, kept, 0)
        bench.audit()


def test_two_locks_of_one_node_are_loosened_apart():
    """A window that one lock has let go stays for the other, whichever is unlocked first."""
    for first, second in ((12, 14), (14, 12)):
        bench = Bench(16, window=Window(6))
        node = bench.cache("abcdefghijklmnop").node
        for to in (12, 14):
            bench.tree.lock(node)
            bench.tree.loosen(node, 10, to)
        evict(bench.tree, 0, 100)
        assert bench.live("abcdefghijklmnop") == "............mnop"
        bench.tree.unlock(node, window_from=first)
        assert bench.tree.window_protected_tokens == 16 - second
        bench.tree.unlock(node, window_from=second)
        assert bench.window_counts() == (4, 0, 12)
        bench.audit()


def test_locks_at_the_ends_of_one_another():
    """Locks whose windows overlap or touch keep the union, in any order of unlocking."""
    word = "abcdefghijkl"
    ends = (4, 6, 9, 12)
    for order in itertools.permutations(ends):
        bench = Bench(12, window=Window(3))
        bench.cache(word)
        nodes = {end: bench.match(word[:end]).node for end in ends}
        for node in nodes.values():
            bench.tree.lock(node)
        for done in range(1, 5):
            bench.tree.unlock(nodes[order[done - 1]])
            kept = {position for end in order[done:] for position in range(end - 3, end)}
            assert bench.tree.window_protected_tokens == len(kept)
            bench.audit()


def test_lock_on_tombstones():
    """A lock on a node whose window is dead counts nothing there until somebody revives it; then it is protected."""
    bench = Bench(12, 2, window=Window(4))
    node = bench.cache("abc", dead=range(3)).node
    bench.tree.lock(node)
    assert bench.window_counts() == (0, 0, 6)
    bench.cache("abcd", dead=[1])
    assert bench.live("abcd") == "a.cd"
    assert bench.window_counts() == (4, 2, 2)  # "a" and "d" are not needed at the end of "abc"
    assert evict(bench.tree, 100, 100) == Gone(2, 1, 4, 2)
    assert bench.live("abcd") == "..c"
    bench.tree.unlock(node)
    assert bench.window_counts() == (2, 0, 4)
    bench.audit()


@PAGE_SIZES
def test_windows_alone_go_in_pieces_of_a_window(page_size):
    """A wish for a token takes a piece of a long node; a bigger wish takes what it says, in whole pages."""
    bench = Bench(60, page_size, window=Window(3 * page_size))
    word = "".join(chr(1000 + i) for i in range(60))
    bench.cache(word)
    assert evict(bench.tree, 0, 0) == Gone()
    piece = 3 * PIECE
    for num_tokens, num_pages in ((1, piece), (piece * page_size, piece), (10 * page_size + 1, 11), (1, piece)):
        before = bench.live(word).count(".")
        gone = evict(bench.tree, 0, num_tokens)
        assert gone == Gone(0, 0, num_pages * page_size, num_pages * page_size)
        assert bench.live(word) == "." * (before + num_pages) + word[before + num_pages :]
        bench.audit()
    assert evict(bench.tree, 0, 10_000).num_window_tokens == (49 - 3 * piece) * page_size
    assert evict(bench.tree, 0, 1) == Gone()
    assert bench.tree.evictable_tokens == 60 * page_size


@PAGE_SIZES
def test_full_nodes_count_for_the_window_side(page_size):
    """Windows that go with whole nodes count towards the wish; only what is still short makes tombstones."""
    bench = Bench(12, page_size, window=Window(page_size))
    for word in ("abcd", "efgh", "ijkl"):
        bench.cache(word, dead=[0])
    gone = evict(bench.tree, 1, 3 * page_size)
    assert gone == Gone(page_size, 1, 3 * page_size, 2 * page_size)
    assert (bench.live("abcd"), bench.live("efgh"), bench.live("ijkl")) == ("...", ".fgh", ".jkl")
    gone = evict(bench.tree, 1, 5 * page_size)
    assert gone == Gone(3 * page_size, 1, 5 * page_size, 5 * page_size)
    assert (bench.live("abcd"), bench.live("efgh"), bench.live("ijkl")) == ("", "....", "...l")
    bench.audit()


@PAGE_SIZES
def test_paths_stay_short(page_size):
    """A long key whose windows go one at a time does not fall into as many nodes, and can be revived."""
    bench = Bench(202, page_size, window=Window(page_size))
    word = "".join(chr(1000 + i) for i in range(101))
    bench.cache(word)
    for num_gone in range(PIECE, 101, PIECE):
        assert evict(bench.tree, 0, 1).num_tombstoned == PIECE * page_size
        assert len(list(bench.tree.root.below())) <= num_gone / 4 + 3
    bench.cache(word)
    assert bench.live(word) == word
    assert bench.match(word).num_tokens == 101 * page_size
    bench.audit()


def test_nodes_that_were_joined_are_gone():
    """A node nobody has locked may become part of the one below; who still holds it is refused."""
    bench = Bench(4, window=Window(1))
    bench.cache("abcd")
    upper, lower = bench.match("ab").node, bench.match("abcd").node
    evict(bench.tree, 0, 4)
    assert bench.live("abcd") == "...."
    (node,) = bench.tree.root.below()
    assert node is lower
    for operation in (bench.tree.lock, bench.tree.unlock, bench.tree.slots):
        with pytest.raises(UseAfterFree):
            operation(upper)
    assert bench.match("ab").num_found == 2
    bench.audit()


def test_pinned_nodes_are_not_joined():
    """The end of a locked prefix stays a node of its own, though both sides of it are tombstones."""
    bench = Bench(4, window=Window(1))
    bench.cache("abcd")
    node = bench.match("ab").node
    bench.tree.lock(node)
    bench.tree.loosen(node, 1, 2)
    evict(bench.tree, 0, 4)
    assert bench.live("abcd") == "...."
    assert sorted(other.end for other in bench.tree.root.below()) == [2, 4]
    bench.tree.unlock(node, window_from=2)
    bench.audit()


@PAGE_SIZES
def test_rows_that_have_no_windows_to_give(page_size):
    """Where the shared part of a row names the tree's own slots, or none of the pool's, tombstones stay tombstones."""
    bench = Bench(8, page_size, window=Window(page_size))
    node = bench.cache("abc", dead=range(3)).node
    own, tokens = bench.tree.slots(node), bench.tokens("abc")
    rows = [own, np.full(own.size, -1), np.zeros(own.size, dtype=np.int64), own + 100 * own.size, own - 100 * own.size]
    for row in rows:
        done = bench.tree.insert(tokens, row)
        assert (done.num_shared, done.num_tokens) == (3 * page_size, 3 * page_size)
        assert bench.live("abc") == "..."
        bench.audit()


@PAGE_SIZES
def test_refused_insert_moves_no_window(page_size):
    """A row that gives one page twice, or whose new pages are none, changes nothing; the right one follows."""
    bench = Bench(12, page_size, window=Window(page_size))
    bench.cache("abc", dead=range(3))
    row = bench.compute(5 * page_size)
    twice, foreign, held = row.copy(), row.copy(), row.copy()
    twice[page_size : 2 * page_size] = row[:page_size]
    foreign[-page_size:] += 100 * page_size
    held[-page_size:] = bench.tree.held_pages()[0] * page_size + np.arange(page_size)

    def state():
        return repr(list(bench.tree.root.below())), bench.window_counts(), bench.allocator.window_pages.tolist()

    before = state()
    for bad, error in ((twice, MisalignedSegment), (foreign, ForeignPage), (held, AuditError)):
        with pytest.raises(error):
            bench.tree.insert(bench.tokens("abcde"), bad)
        assert state() == before
        bench.audit()
    assert bench.tree.insert(bench.tokens("abcde"), row).num_shared == 3 * page_size
    assert bench.live("abcde") == "abcde"
    bench.audit()


@PAGE_SIZES
def test_insert_inside_a_free_group(page_size):
    """While frees are parked a row still gives its windows; the full slots they were in come back at the end."""
    bench = Bench(6, page_size, window=Window(page_size))
    bench.cache("abc", dead=range(3))
    with bench.allocator.defer_frees():
        assert bench.cache("abc", dead=[0]).num_shared == 3 * page_size
        assert bench.live("abc") == ".bc"
        assert bench.room() == (0, 3 * page_size)
    assert bench.room() == (3 * page_size, 4 * page_size)
    bench.audit()


def test_evict_refuses_what_cannot_work_for_windows():
    """A negative wish for windows and a wish inside an open free group are errors that change nothing."""
    bench = Bench(4, window=Window(1))
    bench.cache("ab")
    for wish in ((1, -1), (-1, 1), (0, -5)):
        with pytest.raises(InvalidSize, match=f"'full': {wish[0]}, 'window': {wish[1]}"):
            evict(bench.tree, *wish)
    with bench.allocator.defer_frees(), pytest.raises(OpenGroup, match="End the group first"):
        evict(bench.tree, 0, 1)
    assert bench.live("ab") == "ab"
    bench.audit()


@PAGE_SIZES
def test_failed_free_leaves_the_windows_as_they_were(page_size):
    """When the allocator refuses a victim, freed behind the tree's back, windows and counters stay as they are."""
    bench = Bench(8, page_size, window=Window(page_size))
    bench.cache("abc")
    node = bench.cache("abd").node
    bench.allocator.free_segment(bench.tree.slots(node)[-page_size:], start_pos=0)
    for operation in (lambda: evict(bench.tree, 100 * page_size, 100 * page_size), bench.tree.clear):
        with pytest.raises(DoubleFree):
            operation()
        assert (bench.live("abc"), bench.live("abd")) == ("abc", "ab.")
        assert bench.window_counts() == (4 * page_size, 0, 0)
        assert bench.tree.evictable_tokens == 4 * page_size


def test_loosen_refuses_what_nobody_holds():
    """Only a node of this tree that is locked can be loosened."""
    bench = Bench(4, window=Window(1))
    node = bench.cache("ab").node
    stranger = Bench(4, window=Window(1)).cache("ab").node
    with pytest.raises(LockUnderflow, match="once for each lock"):
        bench.tree.loosen(node, 0, 1)
    with pytest.raises(UseAfterFree, match="not in this tree"):
        bench.tree.loosen(stranger, 0, 1)
    bench.audit()


def test_locked_root_needs_no_window():
    """A request that matched nothing may lock, loosen and unlock what it got."""
    bench = Bench(4, window=Window(2))
    bench.cache("ab")
    root = bench.match("x").node
    bench.tree.lock(root)
    bench.tree.loosen(root, 0, 5)
    assert bench.window_counts() == (2, 0, 0)
    assert bench.tree.clear() is False
    bench.tree.unlock(root, window_from=5)
    assert bench.tree.clear() is True
    assert bench.window_counts() == (0, 0, 0)
    bench.audit()


def test_tree_without_a_window_has_no_window_side():
    """Every window argument is accepted and means nothing; every window figure is 0."""
    bench = Bench(4)
    node = bench.cache("abc").node
    bench.tree.lock(node)
    bench.tree.loosen(node, 0, 2)
    bench.tree.unlock(node, window_from=2)
    assert bench.window_counts() == (0, 0, 0)
    assert bench.match("abcd") == Match(node, 3, 3)
    assert evict(bench.tree, 0, 3) == Gone()
    assert evict(bench.tree, 3, 3) == Gone(3, 1)


@PAGE_SIZES
@pytest.mark.parametrize("dead", [(), (0, 1), (0, 1, 2)])
def test_clear_returns_both_sides(page_size, dead):
    """A clear gives back every slot and every window slot, tombstones or not, and the tree can be filled again."""
    bench = Bench(8, page_size, window=Window(page_size))
    for _ in range(3):
        bench.cache("abc", dead=dead)
        bench.cache("abx")
        assert bench.tree.clear() is True
        assert bench.room() == (8 * page_size, 8 * page_size)
        assert bench.window_counts() == (0, 0, 0)
        bench.audit()


@PAGE_SIZES
def test_unlock_that_reaches_further_back_than_its_lock(page_size):
    """A wrong start of a lock's window part is refused, with nothing changed, whether it is let go or loosened."""
    bench = Bench(8, page_size, window=Window(2 * page_size))
    node = bench.cache("abcdef").node
    bench.tree.lock(node)
    bench.tree.loosen(node, 4 * page_size, 5 * page_size)
    before = bench.window_counts()
    for wrong in (4 * page_size, 0, -1):
        with pytest.raises(LockUnderflow, match=f"from token {wrong} on"):
            bench.tree.unlock(node, window_from=wrong)
        with pytest.raises(LockUnderflow, match=f"from token {wrong} on"):
            bench.tree.loosen(node, wrong, 6 * page_size)
    with pytest.raises(LockUnderflow):
        bench.tree.unlock(node)
    assert bench.window_counts() == before
    bench.audit()
    bench.tree.unlock(node, window_from=5 * page_size)
    assert bench.tree.clear()


def test_row_that_turns_to_its_own_slots_inside_a_tombstone():
    """What is dead behind the tree's own slots comes back to life all the same."""
    bench = Bench(12, window=Window(4))
    bench.cache("abcd", dead=range(4))
    row = bench.tree.slots(bench.tree.root.children.copy().popitem()[1])
    own = bench.compute(2)
    tokens = bench.tokens("abcd")
    done = bench.tree.insert(tokens, np.concatenate((row[:2], own)))
    assert done.num_shared == 4
    bench.allocator.free(own)
    assert bench.live("abcd") == "..cd"
    bench.audit()


@PAGE_SIZES
def test_unlock_that_lets_go_less_than_its_lock_keeps(page_size):
    """A window part named too short is refused as well, and nothing stays protected for ever; nor does one go back."""
    bench = Bench(16, page_size, window=Window(6 * page_size))
    node = bench.cache("abcdefgh").node
    bench.tree.lock(node)
    before = bench.window_counts(), len(list(bench.tree.root.below()))
    for wrong in (4 * page_size, 8 * page_size, 99 * page_size):
        with pytest.raises(LockUnderflow):
            bench.tree.unlock(node, window_from=wrong)
        with pytest.raises(LockUnderflow):
            bench.tree.loosen(node, wrong, 100 * page_size)
    for to in (page_size, -page_size):
        with pytest.raises(InvalidSize, match="cannot move back"):
            bench.tree.loosen(node, 2 * page_size, to)
    assert (bench.window_counts(), len(list(bench.tree.root.below()))) == before
    bench.audit()
    bench.tree.loosen(node, 2 * page_size, 99 * page_size)
    bench.tree.unlock(node, window_from=123 * page_size)
    assert bench.tree.clear()


def test_windows_are_not_taken_from_other_prefixes():
    """Slots that another node owns give nothing to a tombstone: the call is refused and changes nothing."""
    bench = Bench(20, 2, window=Window(4))
    tokens, row = bench.tokens("abcd"), bench.compute(8)
    bench.tree.insert(tokens, row, namespace=Namespace(lora="x"))
    bench.cache("abcd", dead=range(4))
    with pytest.raises(AuditError, match="other prefixes"):
        bench.tree.insert(tokens, row)
    assert [bench.match("abcd", Namespace(lora=lora)).num_tokens for lora in ("", "x")] == [0, 8]
    bench.audit()


def test_tree_with_a_window_needs_an_allocator_that_has_one():
    """An allocator of one side is refused when the tree is built."""
    with pytest.raises(LayoutError, match="PagedAllocator has no window side"):
        PrefixTree(PagedAllocator(8, 2), window=Window(4))


def test_locks_of_roots_are_each_trees_own():
    """A lock of one tree's root is none of another's."""
    one, other = Bench(2, window=Window(1)), Bench(2, window=Window(1))
    one.tree.lock(one.tree.root)
    assert (one.tree.root.window.starts, other.tree.root.window.starts) == ({0: 1}, {})
    one.tree.unlock(one.tree.root)
    assert one.tree.root.window.starts == {}
