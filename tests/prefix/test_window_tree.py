import itertools

import numpy as np
import pytest
from tree_setup import TreeSetup
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
        setup = TreeSetup(8, page_size, window=window)
        setup.cache(word)
        node = setup.match(word[:end]).node
        slots = setup.tree.slots(node).tolist()
        setup.tree.lock(node)
        first_page = window.needed_from(end * page_size) // page_size
        kept = (end - first_page) * page_size
        assert setup.tree.protected_tokens == end * page_size
        assert setup.window_counts() == (8 * page_size - kept, kept, 0)
        assert evict(setup.tree, 0, 100).num_window_tokens == 8 * page_size - kept
        assert setup.live(word) == "." * first_page + word[first_page:end] + "." * (8 - end)
        assert setup.tree.slots(node).tolist() == slots
        setup.tree.unlock(node)
        assert setup.window_counts() == (kept, 0, 8 * page_size - kept)
        setup.audit()


@pytest.mark.parametrize("page_size", [1, 2, 3, 4])
def test_lock_that_is_loosened_keeps_the_rest_of_its_window(page_size):
    """Step by step or at once, what a lock has let go may be evicted and what it has not may not; full slots stay."""
    for span, step in itertools.product(range(1, 10), (1, 2, 3, 40)):
        setup = TreeSetup(8, page_size, window=Window(span))
        node = setup.cache("abcdefgh").node
        setup.tree.lock(node)
        end = 8 * page_size
        since = max(0, end - span)
        for to in range(since, end + step, step):
            setup.tree.loosen(node, since, to)
            since = to
            kept = max(0, end - to // page_size * page_size)
            evict(setup.tree, 100, 100)
            assert setup.window_counts() == (0, kept, end - kept)
            assert (setup.tree.protected_tokens, setup.tree.evictable_tokens) == (end, 0)
            setup.audit()
        setup.tree.unlock(node, window_from=since)
        gone = evict(setup.tree, end)
        assert (gone.num_tokens, gone.num_window_tokens, gone.num_tombstoned) == (end, kept, 0)
        setup.audit()


def test_two_locks_of_one_node_are_loosened_apart():
    """A window that one lock has let go stays for the other, whichever is unlocked first."""
    for first, second in ((12, 14), (14, 12)):
        setup = TreeSetup(16, window=Window(6))
        node = setup.cache("abcdefghijklmnop").node
        for to in (12, 14):
            setup.tree.lock(node)
            setup.tree.loosen(node, 10, to)
        evict(setup.tree, 0, 100)
        assert setup.live("abcdefghijklmnop") == "............mnop"
        setup.tree.unlock(node, window_from=first)
        assert setup.tree.window_protected_tokens == 16 - second
        setup.tree.unlock(node, window_from=second)
        assert setup.window_counts() == (4, 0, 12)
        setup.audit()


def test_locks_at_the_ends_of_one_another():
    """Locks whose windows overlap or touch keep the union, in any order of unlocking."""
    word = "abcdefghijkl"
    ends = (4, 6, 9, 12)
    for order in itertools.permutations(ends):
        setup = TreeSetup(12, window=Window(3))
        setup.cache(word)
        nodes = {end: setup.match(word[:end]).node for end in ends}
        for node in nodes.values():
            setup.tree.lock(node)
        for done in range(1, 5):
            setup.tree.unlock(nodes[order[done - 1]])
            kept = {position for end in order[done:] for position in range(end - 3, end)}
            assert setup.tree.window_protected_tokens == len(kept)
            setup.audit()


def test_lock_on_tombstones():
    """A lock on a node whose window is dead counts nothing there until the window is revived and protected."""
    setup = TreeSetup(12, 2, window=Window(4))
    node = setup.cache("abc", dead=range(3)).node
    setup.tree.lock(node)
    assert setup.window_counts() == (0, 0, 6)
    setup.cache("abcd", dead=[1])
    assert setup.live("abcd") == "a.cd"
    assert setup.window_counts() == (4, 2, 2)  # "a" and "d" are not needed at the end of "abc"
    assert evict(setup.tree, 100, 100) == Gone(2, 1, 4, 2)
    assert setup.live("abcd") == "..c"
    setup.tree.unlock(node)
    assert setup.window_counts() == (2, 0, 4)
    setup.audit()


@PAGE_SIZES
def test_windows_alone_go_in_pieces_of_a_window(page_size):
    """A wish for a token takes a piece of a long node; a bigger wish takes what it says, in whole pages."""
    setup = TreeSetup(60, page_size, window=Window(3 * page_size))
    word = "".join(chr(1000 + i) for i in range(60))
    setup.cache(word)
    assert evict(setup.tree, 0, 0) == Gone()
    piece = 3 * PIECE
    for num_tokens, num_pages in ((1, piece), (piece * page_size, piece), (10 * page_size + 1, 11), (1, piece)):
        before = setup.live(word).count(".")
        gone = evict(setup.tree, 0, num_tokens)
        assert gone == Gone(0, 0, num_pages * page_size, num_pages * page_size)
        assert setup.live(word) == "." * (before + num_pages) + word[before + num_pages :]
        setup.audit()
    assert evict(setup.tree, 0, 10_000).num_window_tokens == (49 - 3 * piece) * page_size
    assert evict(setup.tree, 0, 1) == Gone()
    assert setup.tree.evictable_tokens == 60 * page_size


@PAGE_SIZES
def test_full_nodes_count_for_the_window_side(page_size):
    """Windows that go with whole nodes count towards the wish; only what is still short makes tombstones."""
    setup = TreeSetup(12, page_size, window=Window(page_size))
    for word in ("abcd", "efgh", "ijkl"):
        setup.cache(word, dead=[0])
    gone = evict(setup.tree, 1, 3 * page_size)
    assert gone == Gone(page_size, 1, 3 * page_size, 2 * page_size)
    assert (setup.live("abcd"), setup.live("efgh"), setup.live("ijkl")) == ("...", ".fgh", ".jkl")
    gone = evict(setup.tree, 1, 5 * page_size)
    assert gone == Gone(3 * page_size, 1, 5 * page_size, 5 * page_size)
    assert (setup.live("abcd"), setup.live("efgh"), setup.live("ijkl")) == ("", "....", "...l")
    setup.audit()


@PAGE_SIZES
def test_paths_stay_short(page_size):
    """A long key whose windows go one at a time does not fall into as many nodes, and can be revived."""
    setup = TreeSetup(202, page_size, window=Window(page_size))
    word = "".join(chr(1000 + i) for i in range(101))
    setup.cache(word)
    for num_gone in range(PIECE, 101, PIECE):
        assert evict(setup.tree, 0, 1).num_tombstoned == PIECE * page_size
        assert len(list(setup.tree.root.below())) <= num_gone / 4 + 3
    setup.cache(word)
    assert setup.live(word) == word
    assert setup.match(word).num_tokens == 101 * page_size
    setup.audit()


def test_nodes_that_were_joined_are_gone():
    """A node without locks may become part of the one below; a caller that still holds it is refused."""
    setup = TreeSetup(4, window=Window(1))
    setup.cache("abcd")
    upper, lower = setup.match("ab").node, setup.match("abcd").node
    evict(setup.tree, 0, 4)
    assert setup.live("abcd") == "...."
    (node,) = setup.tree.root.below()
    assert node is lower
    for operation in (setup.tree.lock, setup.tree.unlock, setup.tree.slots):
        with pytest.raises(UseAfterFree):
            operation(upper)
    assert setup.match("ab").num_found == 2
    setup.audit()


def test_pinned_nodes_are_not_joined():
    """The end of a locked prefix stays a node of its own, though both sides of it are tombstones."""
    setup = TreeSetup(4, window=Window(1))
    setup.cache("abcd")
    node = setup.match("ab").node
    setup.tree.lock(node)
    setup.tree.loosen(node, 1, 2)
    evict(setup.tree, 0, 4)
    assert setup.live("abcd") == "...."
    assert sorted(other.end for other in setup.tree.root.below()) == [2, 4]
    setup.tree.unlock(node, window_from=2)
    setup.audit()


@PAGE_SIZES
def test_rows_that_have_no_windows_to_give(page_size):
    """Where the shared part of a row names the tree's own slots, or none of the pool's, tombstones stay tombstones."""
    setup = TreeSetup(8, page_size, window=Window(page_size))
    node = setup.cache("abc", dead=range(3)).node
    own, tokens = setup.tree.slots(node), setup.tokens("abc")
    rows = [own, np.full(own.size, -1), np.zeros(own.size, dtype=np.int64), own + 100 * own.size, own - 100 * own.size]
    for row in rows:
        done = setup.tree.insert(tokens, row)
        assert (done.num_shared, done.num_tokens) == (3 * page_size, 3 * page_size)
        assert setup.live("abc") == "..."
        setup.audit()


@PAGE_SIZES
def test_refused_insert_moves_no_window(page_size):
    """A row that gives one page twice, or whose new pages are none, changes nothing; the right one follows."""
    setup = TreeSetup(12, page_size, window=Window(page_size))
    setup.cache("abc", dead=range(3))
    row = setup.compute(5 * page_size)
    twice, foreign, held = row.copy(), row.copy(), row.copy()
    twice[page_size : 2 * page_size] = row[:page_size]
    foreign[-page_size:] += 100 * page_size
    held[-page_size:] = setup.tree.held_pages()[0] * page_size + np.arange(page_size)

    def state():
        return repr(list(setup.tree.root.below())), setup.window_counts(), setup.allocator.window_pages.tolist()

    before = state()
    for bad, error in ((twice, MisalignedSegment), (foreign, ForeignPage), (held, AuditError)):
        with pytest.raises(error):
            setup.tree.insert(setup.tokens("abcde"), bad)
        assert state() == before
        setup.audit()
    assert setup.tree.insert(setup.tokens("abcde"), row).num_shared == 3 * page_size
    assert setup.live("abcde") == "abcde"
    setup.audit()


@PAGE_SIZES
def test_insert_inside_a_free_group(page_size):
    """While frees are parked a row still gives its windows; the full slots they were in come back at the end."""
    setup = TreeSetup(6, page_size, window=Window(page_size))
    setup.cache("abc", dead=range(3))
    with setup.allocator.defer_frees():
        assert setup.cache("abc", dead=[0]).num_shared == 3 * page_size
        assert setup.live("abc") == ".bc"
        assert setup.room() == (0, 3 * page_size)
    assert setup.room() == (3 * page_size, 4 * page_size)
    setup.audit()


def test_evict_refuses_what_cannot_work_for_windows():
    """A negative wish for windows and a wish inside an open free group are errors that change nothing."""
    setup = TreeSetup(4, window=Window(1))
    setup.cache("ab")
    for wish in ((1, -1), (-1, 1), (0, -5)):
        with pytest.raises(InvalidSize, match=f"'full': {wish[0]}, 'window': {wish[1]}"):
            evict(setup.tree, *wish)
    with setup.allocator.defer_frees(), pytest.raises(OpenGroup, match="End the group first"):
        evict(setup.tree, 0, 1)
    assert setup.live("ab") == "ab"
    setup.audit()


@PAGE_SIZES
def test_failed_free_leaves_the_windows_as_they_were(page_size):
    """When the allocator refuses a victim, freed behind the tree's back, windows and counters stay as they are."""
    setup = TreeSetup(8, page_size, window=Window(page_size))
    setup.cache("abc")
    node = setup.cache("abd").node
    setup.allocator.free_segment(setup.tree.slots(node)[-page_size:], start_pos=0)
    for operation in (lambda: evict(setup.tree, 100 * page_size, 100 * page_size), setup.tree.clear):
        with pytest.raises(DoubleFree):
            operation()
        assert (setup.live("abc"), setup.live("abd")) == ("abc", "ab.")
        assert setup.window_counts() == (4 * page_size, 0, 0)
        assert setup.tree.evictable_tokens == 4 * page_size


def test_loosen_refuses_a_window_that_no_lock_holds():
    """Only a node of this tree that is locked can be loosened."""
    setup = TreeSetup(4, window=Window(1))
    node = setup.cache("ab").node
    stranger = TreeSetup(4, window=Window(1)).cache("ab").node
    with pytest.raises(LockUnderflow, match="once for each lock"):
        setup.tree.loosen(node, 0, 1)
    with pytest.raises(UseAfterFree, match="not in this tree"):
        setup.tree.loosen(stranger, 0, 1)
    setup.audit()


def test_locked_root_needs_no_window():
    """A request that matched nothing may lock, loosen and unlock what it got."""
    setup = TreeSetup(4, window=Window(2))
    setup.cache("ab")
    root = setup.match("x").node
    setup.tree.lock(root)
    setup.tree.loosen(root, 0, 5)
    assert setup.window_counts() == (2, 0, 0)
    assert setup.tree.clear() is False
    setup.tree.unlock(root, window_from=5)
    assert setup.tree.clear() is True
    assert setup.window_counts() == (0, 0, 0)
    setup.audit()


def test_tree_without_a_window_has_no_window_side():
    """Every window argument is accepted and means nothing; every window figure is 0."""
    setup = TreeSetup(4)
    node = setup.cache("abc").node
    setup.tree.lock(node)
    setup.tree.loosen(node, 0, 2)
    setup.tree.unlock(node, window_from=2)
    assert setup.window_counts() == (0, 0, 0)
    assert setup.match("abcd") == Match(node, 3, 3)
    assert evict(setup.tree, 0, 3) == Gone()
    assert evict(setup.tree, 3, 3) == Gone(3, 1)


@PAGE_SIZES
@pytest.mark.parametrize("dead", [(), (0, 1), (0, 1, 2)])
def test_clear_returns_both_sides(page_size, dead):
    """A clear gives back every slot and every window slot, tombstones or not, and the tree can be filled again."""
    setup = TreeSetup(8, page_size, window=Window(page_size))
    for _ in range(3):
        setup.cache("abc", dead=dead)
        setup.cache("abx")
        assert setup.tree.clear() is True
        assert setup.room() == (8 * page_size, 8 * page_size)
        assert setup.window_counts() == (0, 0, 0)
        setup.audit()


@PAGE_SIZES
def test_unlock_that_reaches_further_back_than_its_lock(page_size):
    """A wrong start of a lock's window part is refused, with nothing changed, whether it is let go or loosened."""
    setup = TreeSetup(8, page_size, window=Window(2 * page_size))
    node = setup.cache("abcdef").node
    setup.tree.lock(node)
    setup.tree.loosen(node, 4 * page_size, 5 * page_size)
    before = setup.window_counts()
    for wrong in (4 * page_size, 0, -1):
        with pytest.raises(LockUnderflow, match=f"from token {wrong} on"):
            setup.tree.unlock(node, window_from=wrong)
        with pytest.raises(LockUnderflow, match=f"from token {wrong} on"):
            setup.tree.loosen(node, wrong, 6 * page_size)
    with pytest.raises(LockUnderflow):
        setup.tree.unlock(node)
    assert setup.window_counts() == before
    setup.audit()
    setup.tree.unlock(node, window_from=5 * page_size)
    assert setup.tree.clear()


def test_row_that_turns_to_its_own_slots_inside_a_tombstone():
    """What is dead behind the tree's own slots comes back to life all the same."""
    setup = TreeSetup(12, window=Window(4))
    setup.cache("abcd", dead=range(4))
    row = setup.tree.slots(setup.tree.root.children.copy().popitem()[1])
    own = setup.compute(2)
    tokens = setup.tokens("abcd")
    done = setup.tree.insert(tokens, np.concatenate((row[:2], own)))
    assert done.num_shared == 4
    setup.allocator.free(own)
    assert setup.live("abcd") == "..cd"
    setup.audit()


@PAGE_SIZES
def test_unlock_that_lets_go_less_than_its_lock_keeps(page_size):
    """A window part named too short is refused as well, and nothing stays protected for ever; nor does one go back."""
    setup = TreeSetup(16, page_size, window=Window(6 * page_size))
    node = setup.cache("abcdefgh").node
    setup.tree.lock(node)
    before = setup.window_counts(), len(list(setup.tree.root.below()))
    for wrong in (4 * page_size, 8 * page_size, 99 * page_size):
        with pytest.raises(LockUnderflow):
            setup.tree.unlock(node, window_from=wrong)
        with pytest.raises(LockUnderflow):
            setup.tree.loosen(node, wrong, 100 * page_size)
    for to in (page_size, -page_size):
        with pytest.raises(InvalidSize, match="cannot move back"):
            setup.tree.loosen(node, 2 * page_size, to)
    assert (setup.window_counts(), len(list(setup.tree.root.below()))) == before
    setup.audit()
    setup.tree.loosen(node, 2 * page_size, 99 * page_size)
    setup.tree.unlock(node, window_from=123 * page_size)
    assert setup.tree.clear()


def test_windows_are_not_taken_from_other_prefixes():
    """Slots that another node owns give nothing to a tombstone: the call is refused and changes nothing."""
    setup = TreeSetup(20, 2, window=Window(4))
    tokens, row = setup.tokens("abcd"), setup.compute(8)
    setup.tree.insert(tokens, row, namespace=Namespace(lora="x"))
    setup.cache("abcd", dead=range(4))
    with pytest.raises(AuditError, match="other prefixes"):
        setup.tree.insert(tokens, row)
    assert [setup.match("abcd", Namespace(lora=lora)).num_tokens for lora in ("", "x")] == [0, 8]
    setup.audit()


def test_tree_with_a_window_needs_an_allocator_that_has_one():
    """An allocator of one side is refused when the tree is built."""
    with pytest.raises(LayoutError, match="PagedAllocator has no window side"):
        PrefixTree(PagedAllocator(8, 2), window=Window(4))


def test_locks_of_roots_are_each_trees_own():
    """A lock of one tree's root is none of another's."""
    one, other = TreeSetup(2, window=Window(1)), TreeSetup(2, window=Window(1))
    one.tree.lock(one.tree.root)
    assert (one.tree.root.window.starts, other.tree.root.window.starts) == ({0: 1}, {})
    one.tree.unlock(one.tree.root)
    assert one.tree.root.window.starts == {}
