import logging
import sys
from types import SimpleNamespace

import fake_sglang
import pytest
import torch

from kvstead.integrations.sglang import auditing, plugin


class Pool:
    """A pool of SGLang's as the audit sees it: a list of free pages, and a group of frees."""

    page_size = 4

    def __init__(self, size):
        self.size = size
        self.clear()

    def clear(self):
        """Every page is free."""
        self.free_pages = torch.arange(1, self.size // self.page_size + 1)
        self.free_group = None

    def available_size(self):
        """Slots of the free pages."""
        return len(self.free_pages) * self.page_size

    def alloc(self, need_size):
        """Whole pages, or None."""
        count = need_size // self.page_size
        if count > len(self.free_pages):
            return None
        pages, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return (pages[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)

    def alloc_decode(self, last):
        """The slots behind others, in the same pages."""
        return last + 1

    def free(self, slots):
        """Free the pages that slots lie in, now or when the group ends."""
        if self.free_group is None:
            self.free_page_ids(torch.unique(slots // self.page_size))
        else:
            self.free_group.append(slots)

    def free_page_ids(self, page_ids):
        """Free pages by id."""
        self.free_pages = torch.cat([self.free_pages, page_ids])

    def free_group_begin(self):
        """Let frees wait."""
        self.free_group = []

    def free_group_end(self):
        """Free what waits."""
        waiting, self.free_group = self.free_group, None
        if waiting:
            self.free(torch.cat(waiting))


class States:
    """SGLang's pool of states."""

    def __init__(self, size):
        self.size = size
        self.clear()

    def clear(self):
        """Every state is free."""
        self.free_slots = torch.arange(1, self.size + 1)

    def available_size(self):
        """Free states."""
        return len(self.free_slots)

    def alloc(self, need_size):
        """States, in two steps."""
        return self._do_alloc(need_size)

    def _do_alloc(self, need_size):
        taken, self.free_slots = self.free_slots[:need_size], self.free_slots[need_size:]
        return taken

    def free(self, slots):
        """Free states."""
        self.free_slots = torch.cat([self.free_slots, slots])


class Checker:
    """SGLang's checks."""

    def __init__(self, allocator=None, cached=None):
        self.token_to_kv_pool_allocator = allocator
        self.tree_cache = SimpleNamespace(all_values_flatten=lambda: cached)
        self.holds = True

    def self_check_during_busy(self):
        """Raise where books do not add up."""
        assert self.holds, "leak"


@pytest.fixture
def audit(monkeypatch, caplog):
    """The audit of a process whose SGLang has these pools."""
    caplog.set_level(logging.INFO, logger="kvstead.sglang")
    fake_sglang.install(monkeypatch)
    home = "sglang.srt.mem_cache.allocator"
    names = {"paged": "PagedTokenToKVPoolAllocator", "token": "TokenToKVPoolAllocator"}
    for module, name in names.items():
        fake_sglang.module(monkeypatch, f"{home}.{module}", **{name: type(name, (Pool,), dict(vars(Pool)))})
    fake_sglang.module(monkeypatch, f"{home}.mamba", MambaSlotAllocator=type("States", (States,), dict(vars(States))))
    raised = []
    checks = {"SchedulerInvariantChecker": Checker, "raise_error_or_warn": lambda *args: raised.append(args)}
    fake_sglang.module(monkeypatch, auditing._CHECKER, **checks)
    monkeypatch.setattr(Checker, "self_check_during_busy", Checker.self_check_during_busy)
    found = auditing.start()
    found.raised = raised
    return found


def pools():
    home = sys.modules["sglang.srt.mem_cache.allocator.paged"]
    return home.PagedTokenToKVPoolAllocator(32)


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_calls_that_are_right_are_followed_in_silence(audit, caplog):
    """Takes, frees, groups, states and clears: no fault, and the shadow has what the pool has."""
    pool, states = pools(), sys.modules["sglang.srt.mem_cache.allocator.mamba"].MambaSlotAllocator(3)
    row = pool.alloc(12)
    assert pool.alloc(64) is None
    pool.alloc_decode(row[:2])
    pool.free_group_begin()
    pool.free(row[:4])
    pool.free_group_end()
    pool.free_page_ids(row[4:5] // 4)
    pool.free(row[8:])
    state = states.alloc(2)
    states.free(state[:1])
    assert not errors(caplog)
    assert audit.pools[pool].shadow.num_free == 8
    assert audit.pools[states].shadow.num_free == 2
    pool.alloc(4)
    pool.clear()
    assert audit.pools[pool].shadow.num_free == 8
    assert audit.facts()["num_faults"] == 0
    assert len(audit.facts()["pools"]) == 2


def test_first_wrong_free_is_reported_with_all_three_places(audit, caplog):
    """Who took the page, who freed it first and who freed it again; further faults are counted."""
    pool = pools()

    def serve(batch):
        assert batch
        return pool.alloc(8)

    row = serve(SimpleNamespace(reqs=[SimpleNamespace(rid="r1"), SimpleNamespace(rid="r2")], extend_lens=[4, 4]))
    pool.free(row)
    pool.free(row[4:])
    (said,) = errors(caplog)
    assert "PagedTokenToKVPoolAllocator of 32 slots: page 2 was freed while nobody held it" in said
    assert "taken by request r2 at test_sglang_audit.py" in said
    assert said.count("test_first_wrong_free_is_reported") == 3
    pool.free(row)
    assert len(errors(caplog)) == 1
    assert audit.facts()["num_faults"] == 2
    assert audit.facts()["first_faults"][0] in said


def test_wrong_free_in_a_group_is_reported_at_the_call(audit, caplog):
    """A page that waits already is freed twice."""
    pool = pools()
    row = pool.alloc(4)
    pool.free_group_begin()
    pool.free(row)
    pool.free(row)
    assert "freed while nobody held it" in errors(caplog)[0]
    assert audit.pools[pool].num_faults == 1


def test_pages_that_move_without_a_call_are_a_divergence(audit, caplog):
    """Who writes to the pool's lists is found at the next call."""
    pool = pools()
    pool.free_pages = pool.free_pages[1:]
    pool.alloc(4)
    (said,) = errors(caplog)
    assert "24 slots are available where the calls so far leave 28: somebody changed the pool's lists" in said
    pool.alloc(4)
    assert audit.pools[pool].num_faults == 1


def test_reports_of_leaks_name_the_holders(audit, caplog):
    """SGLang's own report comes with who holds what is not cached; so does a failed check while requests run."""
    pool = pools()
    row = pool.alloc(4)

    def forget(req):
        assert req
        return pool.alloc(8)

    forget(SimpleNamespace(rid="lost"))
    checker = Checker(pool, row)
    module = sys.modules[auditing._CHECKER]
    module.raise_error_or_warn(checker, True, "count", "leak detected!")
    (_, is_strict, counter, message) = audit.raised[0]
    assert (is_strict, counter) == (True, "count")
    assert message.startswith(
        "leak detected!\nkvstead audit:\nPagedTokenToKVPoolAllocator of 32 slots, besides what is"
    )
    assert "2 held by request lost, taken at test_sglang_audit.py" in message
    module.raise_error_or_warn(Checker(pool, torch.arange(16)), False, "count", "other")
    assert audit.raised[1][3] == "other"
    checker.holds = False
    with pytest.raises(AssertionError, match="leak"):
        checker.self_check_during_busy()
    assert "request lost" in errors(caplog)[-1]
    checker.holds = True
    checker.self_check_during_busy()


def test_holders_of_pools_that_no_tree_lists_are_all_named(audit):
    """A pool beside the one of the prefix cache is listed whole; a caller that names no request is said to be one."""
    pool = pools()
    pool.alloc(4)
    said = audit.explain(Checker())
    assert "PagedTokenToKVPoolAllocator of 32 slots:\n  1 held by nobody that is named, taken at" in said


def test_audit_keeps_the_classes_and_shows_in_server_info(monkeypatch, audit):
    """The switch `audit` replaces nothing; the scheduler's state has the pools and faults."""
    assert audit.facts()["pools"] == []
    monkeypatch.setenv(plugin.SWITCH, "audit")
    started = []
    monkeypatch.setattr(auditing, "start", lambda: started.append(True))
    plugin.register()
    sys.modules["sglang.srt.plugins.hook_registry"].HookRegistry.apply_hooks()
    scheduler = sys.modules["sglang.srt.managers.scheduler"].Scheduler()
    assert started == [True]
    assert scheduler.get_internal_state().internal_state["kvstead"]["audit"]["num_faults"] == 0
