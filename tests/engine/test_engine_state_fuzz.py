"""Random traffic on small memories with states, and with kinds that share an arena: nothing is ever read wrong."""

from typing import NamedTuple

import numpy as np
import pytest
from fake_memory import Fence, Switch
from fake_model import SPACES, FakeRunner, LateRunner, generate

from kvstead.engine import KVCacheManager, Request, Scheduler, Status
from kvstead.pages.amounts import FULL, STATE, WINDOW, Amounts
from tiny_model import tiny_layout, tiny_state_layout, tiny_window_layout

KINDS = ["full", "full window", "full state", "full window state", "full chunk state"]
POOL_LAYOUTS = ["static", "unified"]


class Memory(NamedTuple):
    """A model, sizes in pages and states, and how they are laid out."""

    kind: str
    pool_layout: str
    page_size: int
    span: int
    sizes: Amounts
    options: dict

    def layout(self):
        """The model's."""
        if "state" in self.kind:
            span = self.span if self.kind != "full state" else 0
            return tiny_state_layout(span, chunked="chunk" in self.kind, state_rows=self.span)
        return tiny_window_layout(self.span) if "window" in self.kind else tiny_layout()

    def demand(self, num_tokens):
        """What one sequence holds when it is computed up to `num_tokens` tokens."""
        pages = -(-num_tokens // self.page_size)
        has_window = self.kind not in {"full", "full state"}
        windows = min(pages, -(-self.span // self.page_size) + 2) if has_window else 0
        return Amounts(full=pages, window=windows, state=1 if "state" in self.kind else 0)

    def page_bytes(self):
        """Of each side."""
        layout = self.layout()
        tokens = layout.full_bytes_per_token, layout.window_bytes_per_token
        full, window = (size * self.page_size for size in tokens)
        return Amounts(full=full, window=window, state=layout.state_bytes)

    def bytes_of(self, demand):
        """What pages and states take together."""
        return sum(count * self.page_bytes()[side] for side, count in demand.items())

    def manager(self, **keywords):
        """The manager of such a memory."""
        options = {"max_requests": 16, "max_length": 512, "page_size": self.page_size, **self.options, **keywords}
        layout = self.layout()
        if self.pool_layout == "static":
            sizes = {"num_slots": self.sizes[FULL] * self.page_size}
            if self.sizes[WINDOW]:
                sizes["num_window_slots"] = self.sizes[WINDOW] * self.page_size
            if self.sizes[STATE]:
                sizes["num_states"] = self.sizes[STATE]
            for name in ("eager", "may_move"):
                options.pop(name, None)
            return KVCacheManager(layout, **sizes, **options)
        return KVCacheManager(layout, self.num_bytes(), pool_layout=self.pool_layout, **options)

    def num_bytes(self):
        """Of a memory whose sides share it, sink included: enough for a page of each on any grid."""
        each = self.page_bytes().values()
        return max(each) + max(self.bytes_of(self.sizes), 2 * sum(each))

    def verdict(self, num_tokens):
        """Whether a sequence fits when it has the memory to itself; None where that is a matter of grids."""
        demand = self.demand(num_tokens)
        if self.pool_layout == "static":
            return all(want <= self.sizes[side] for side, want in demand.items())
        largest = max(self.page_bytes().values())
        spare = self.num_bytes() - largest - self.bytes_of(demand)
        if spare < 0:
            return False
        return True if spare >= 3 * largest else None


class Traffic(NamedTuple):
    """Requests, and how they are served. A spec: prompt, new tokens, space, stop tokens, comes at, aborted at."""

    memory: Memory
    options: dict
    specs: list
    make_runner: type
    is_toggling: bool
    seed: int


def traffic(seed, kind, pool_layout, size):
    """Some of it: `size` requests."""
    rng = np.random.default_rng([seed, KINDS.index(kind), POOL_LAYOUTS.index(pool_layout)])

    def one_of(*values):
        return values[rng.integers(len(values))]

    page_size, span = one_of(1, 4, 1, 4, 2, 3, 16), int(rng.integers(1, 12))
    most = int(rng.integers(4, 4 + 3 * size))  # tokens of a sequence
    memory = Memory(kind, pool_layout, page_size, span, Amounts(), {})
    alone = memory.demand(most)
    factor = one_of(1, 1, 1, 2, 3, 5)
    sizes = Amounts(
        full=alone[FULL] * factor + int(rng.integers(0, 3)),
        window=(alone[WINDOW] * factor + int(rng.integers(0, 2))) if alone[WINDOW] else 0,
        state=(factor + int(one_of(0, 0, 0, 1, 2, 6))) if alone[STATE] else 0,
    )
    if sizes[WINDOW]:
        sizes[WINDOW] = max(sizes[WINDOW], min(-(-span // page_size), sizes[FULL] or most))
    if pool_layout == "unified":  # grids may cost a page of each
        sizes = Amounts({side: count + (count > 0) * int(rng.integers(0, 2)) for side, count in sizes.items()})
    may_move = Switch()
    options = {
        "prefix_cache": rng.random() < 0.85,
        "policy": one_of("lru", "lru", "lfu", "mru"),
        "state_interval": one_of(1, 2, 3, 5, 8, 16, 64),
        "eager": rng.random() < 0.4,
        "fence": Fence(),
        "may_move": may_move,
        "storage": rng.random() < 0.85,
    }
    specs = [
        (
            rng.integers(0, 2, rng.integers(1, max(2, most))).tolist(),
            int(rng.integers(1, max(2, most // 2))),
            SPACES[one_of(*[0] * 4, *range(len(SPACES)))],
            one_of((), (), (0,), (1, 3)),
            int(rng.integers(0, 2 * size)),
            int(rng.integers(0, 4 * size)) if rng.random() < 0.2 else None,
        )
        for _ in range(size)
    ]
    for at in range(1, size):  # conversations: a prompt that goes on where another stops
        if rng.random() < 0.5:
            other = specs[rng.integers(at)]
            whole = other[0] + generate(other[0], other[1], other[2][0], keys=other[2][1])
            prompt = (whole + specs[at][0])[: max(1, min(most, len(whole) + int(rng.integers(1, 5))))]
            specs[at] = (prompt, specs[at][1], other[2], *specs[at][3:])
    scheduling = {
        "chunk_tokens": int(rng.integers(1, 2 + one_of(6, 12, 40))),
        "max_running": int(rng.integers(1, 9)),
        "decode_headroom": one_of(0, 1, 5, 20),
        "overlap": rng.random() < 0.6,
    }
    memory = memory._replace(sizes=sizes, options=options)
    return Traffic(memory, scheduling, specs, one_of(FakeRunner, LateRunner), rng.random() < 0.3, seed)


def play(case):
    """Run the traffic to its end, auditing after every step; returns requests, scheduler, runner."""
    manager = case.memory.manager()
    scheduler = Scheduler(manager, **case.options)
    runner = case.make_runner(manager)
    fence, switch = case.memory.options["fence"], case.memory.options["may_move"]
    if isinstance(runner, LateRunner):
        fence.wait = runner.drain
    rng = np.random.default_rng(case.seed)
    requests = [
        Request(i, np.array(prompt), new, namespace=space[0], stop_tokens=stop, keys=space[1])
        for i, (prompt, new, space, stop, _, _) in enumerate(case.specs)
    ]
    last = max(arrives for *_, arrives, _ in case.specs)
    for step in range(4000):
        switch.is_on = not case.is_toggling or bool(rng.integers(2))
        for request, (*_, arrives, aborted) in zip(requests, case.specs, strict=True):
            if arrives == step:
                scheduler.add(request)
            if aborted == step and arrives <= step:
                scheduler.abort(request)
                scheduler.abort(request)
        scheduler.step(runner)
        manager.audit()
        check_bytes(manager)
        runner.poison_free_slots()
        if step % 4 == 0:
            runner.check_cached()
        if step >= last and scheduler.is_idle:
            return requests, scheduler, runner
    pytest.fail("the scheduler does not come to an end")


def check_bytes(manager):
    """What the memory is by state adds up to all of it."""
    stats = manager.stats()
    assert min(stats.by_state.values()) >= 0
    assert sum(stats.by_state.values()) == stats.total_bytes == manager.total_bytes


def check(case):
    """What must hold when all is done; returns scheduler and runner."""
    requests, scheduler, runner = play(case)
    for request, (prompt, new, space, stop, _, aborted) in zip(requests, case.specs, strict=True):
        verdict = case.memory.verdict(len(prompt) + new - 1)
        assert verdict in {None, request.status is not Status.REJECTED}
        if request.status is Status.REJECTED:
            continue
        expected = generate(prompt, new, space[0], stop, space[1])
        output = request.output.tolist()
        assert output == expected[: len(output)]
        assert request.status in {Status.FINISHED, Status.ABORTED}
        assert output == expected if request.status is Status.FINISHED else aborted is not None
    manager = scheduler.manager
    runner.check_cached()
    if isinstance(runner, LateRunner):
        runner.drain()
    assert manager.table.live_rows().size == 0
    assert manager.live_tokens() == manager.window_live_tokens() == manager.live_states() == 0
    assert manager.row_states is None or (manager.row_states.num_kept, manager.tree.held_states) == (0, 0)
    assert manager.flush()
    manager.audit()
    assert manager.stats().live == manager.stats().cached == manager.stats().parked == 0
    assert manager.allocator.states is None or manager.allocator.states.live_size() == 0
    return scheduler, runner


@pytest.mark.parametrize("pool_layout", POOL_LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_output_is_the_models_own_whatever_shares_the_memory(kind, pool_layout):
    """Whatever is shared, copied, moved, evicted, retracted or aborted, all that is read is as it was written."""
    num_reads = num_copies = num_moves = num_evicted = 0
    for seed in range(5):
        scheduler, runner = check(traffic(seed, kind, pool_layout, size=10))
        manager = scheduler.manager
        num_reads += min(runner.num_reads, runner.num_state_reads if manager.state_bytes else runner.num_reads)
        num_copies += manager.num_state_copies
        num_moves += manager.chain.num_moves if manager.chain else 0
        num_evicted += manager.evicted.pages["full"]
    assert num_reads > 0
    assert num_evicted > 0
    assert (num_copies > 0) == ("state" in kind)
    assert kind == "full" or (num_moves > 0) == (pool_layout == "unified")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(300))
@pytest.mark.parametrize("pool_layout", POOL_LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_output_is_the_models_own_whatever_shares_the_memory_for_long(kind, pool_layout, seed):
    """The same with more requests at once, and longer ones."""
    check(traffic(seed + 1000, kind, pool_layout, size=14 + seed % 20))
