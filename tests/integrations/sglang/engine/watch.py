"""Notes what a scheduler does: its batches, its checks, what its cache gave up, and the time that it takes."""

import time
from collections import Counter, defaultdict
from functools import wraps

_CHECKS = (
    "self_check_during_busy",
    "_check_kv_page_invariants",
    "_check_all_pools",
    "_check_req_pool",
    "_check_tree_cache",
)
_SIZES = ("evictable_size", "protected_size")
_SIDES = ("", "full_", "swa_", "mamba_")


class Watch:
    """Wraps the methods of `scheduler`; times are those of its thread on a CPU, by kind of batch, without the model."""

    def __init__(self, scheduler):
        self._scheduler = scheduler
        self._forward = 0.0
        self.batches = []
        self.checks = Counter()
        self.evicted = Counter()
        self.snapshots = []
        self.seconds = [defaultdict(list)]  # by round
        self._wrap_steps()
        self._wrap_checks()
        self._wrap_eviction()

    def end_round(self):
        """Note what is free, cached and locked, of each side, and how many rows are free."""
        allocator, tree, rows = self._parts()
        taken = {"available": int(allocator.available_size()), "rows": int(rows.available_size())}
        for side in _SIDES:
            for size in _SIZES:
                taken[f"{side}{size}"] = int(getattr(tree, f"{side}{size}", int)())
        for side in ("full", "swa"):
            taken[f"{side} available"] = int(getattr(allocator, f"{side}_available_size", int)())
        if getattr(rows, "mamba_allocator", None) is not None:
            taken["states available"] = int(rows.mamba_allocator.available_size())
        self.snapshots.append(taken)
        self.seconds.append(defaultdict(list))

    def types(self):
        """Where the classes come from that the scheduler runs on."""
        allocator, tree, rows = self._parts()
        found = {"allocator": allocator, "tree": tree, "core": getattr(tree, "tree_core", None), "rows": rows}
        if getattr(rows, "mamba_allocator", None) is not None:
            found["states"] = rows.mamba_allocator
        return {part: f"{type(it).__module__}.{type(it).__qualname__}" for part, it in found.items()}

    def _parts(self):
        scheduler = self._scheduler
        return scheduler.token_to_kv_pool_allocator, scheduler.tree_cache, scheduler.req_to_token_pool

    def _timed(self, name, call, batch_of):
        @wraps(call)
        def timed(*args, **kwargs):
            self._forward = 0.0
            start = time.thread_time()
            result = call(*args, **kwargs)
            spent = time.thread_time() - start - self._forward
            batch = batch_of(args, result)
            if batch is not None:
                self.seconds[-1][f"{name} {batch.forward_mode.name.lower()}"].append(spent)
            return result

        return timed

    def _wrap_steps(self):
        scheduler = self._scheduler
        available = scheduler.token_to_kv_pool_allocator.available_size
        choose = self._timed("get", scheduler.get_next_batch_to_run, lambda _, plan: plan.batch_to_run)

        def noted(*args, **kwargs):
            plan = choose(*args, **kwargs)
            if (batch := plan.batch_to_run) is not None:
                who = [request.rid for request in batch.reqs]
                self.batches.append([batch.forward_mode.name, who, int(available())])
            return plan

        scheduler.get_next_batch_to_run = noted
        scheduler.run_batch = self._timed("run", scheduler.run_batch, lambda args, _: args[0])
        scheduler.process_batch_result = self._timed("result", scheduler.process_batch_result, lambda args, _: args[0])
        worker = scheduler.tp_worker
        forward = worker.forward_batch_generation

        def clocked(*args, **kwargs):
            start = time.thread_time()
            try:
                return forward(*args, **kwargs)
            finally:
                self._forward += time.thread_time() - start

        worker.forward_batch_generation = clocked

    def _wrap_checks(self):
        checker = type(self._scheduler.invariant_checker)  # its instances have slots
        for name in _CHECKS:
            setattr(checker, name, self._counted(name, getattr(checker, name)))

    def _counted(self, name, check):
        @wraps(check)
        def counted(*args, **kwargs):
            self.checks[name] += 1
            return check(*args, **kwargs)

        return counted

    def _wrap_eviction(self):
        tree = self._scheduler.tree_cache
        name = "_evict" if hasattr(tree, "_evict") else "evict"
        evict = getattr(tree, name)

        def noted(*args, **kwargs):
            result = evict(*args, **kwargs)
            self.evicted["full"] += result.num_tokens_evicted
            self.evicted["window"] += result.swa_num_tokens_evicted
            self.evicted["states"] += result.mamba_num_evicted
            return result

        setattr(tree, name, noted)
