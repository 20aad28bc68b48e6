"""Random legal scripts for allocators of a unified buffer, run on several at once, with a stamp in every live page."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import torch

from drop_in import DropIn

KINDS = ("windows", "states", "both")
TOKEN_BYTES, WINDOW_BYTES, STATE_BYTES = 96, 64, 656  # bytes of an entry in each pool
SETTINGS = {"head_num": 1, "head_dim": 8, "store_dtype": torch.float16}


def make_specs(classes, kind):
    """Specs of these sizes, in the chain's places."""
    has_windows, has_states = kind != "states", kind != "windows"
    specs = [classes.MHASubPoolSpec(name="full", layer_num=2, v_head_dim=16, grow_direction="down", **SETTINGS)]
    if has_windows:
        place = "float" if has_states else "up"
        specs.append(classes.MHASubPoolSpec(name="swa", layer_num=2, grow_direction=place, **SETTINGS))
    if has_states:
        shapes = {"conv_state_shapes": ((4, 8), (2, 16)), "temporal_state_shape": (2, 5, 5)}
        dtypes = {"conv_dtype": torch.bfloat16, "temporal_dtype": torch.float32}
        specs.append(classes.MambaSubPoolSpec(name="mamba", layer_num=2, grow_direction="up", **shapes, **dtypes))
    return specs


def make_buffer(classes, kind, page_size, num_pages=10):
    """A buffer of so many pages of both sides and a few states."""
    total = num_pages * page_size * (TOKEN_BYTES + WINDOW_BYTES) + (kind != "windows") * 9 * STATE_BYTES
    specs = make_specs(classes, kind)
    return classes.UnifiedKVPool(
        total_bytes=total, sub_pool_specs=specs, device="cpu", enable_memory_saver=False, page_size=page_size
    )


def make_allocator(classes, buffer, kind, page_size, kvcache, *, is_lazy):
    """The allocator for the kind of buffer."""
    common = {"unified_buffer": buffer, "kvcache": kvcache, "device": "cpu", "page_size": page_size}
    common |= {"need_sort": False, "forward_stream": None, "lazy_compaction": is_lazy}
    if kind == "states":
        return classes.UnifiedMambaTokenToKVPoolAllocator(**common)
    sizes = {"full_max_total_num_tokens": 4000, "swa_max_total_num_tokens": 4000}
    if kind == "windows":
        return classes.UnifiedSWATokenToKVPoolAllocator(**common, **sizes)
    return classes.UnifiedMambaSWATokenToKVPoolAllocator(**common, **sizes, mamba_kvcache=kvcache.mamba_pool)


class NoTensors:
    """Stands for the pools that the slots index."""

    full_kv_pool = swa_kv_pool = mamba_pool = swa_req_ring_size = None

    def attach_allocators(self, *, full_allocator, swa_allocator):
        """Keep both."""
        self.full_allocator, self.swa_allocator = full_allocator, swa_allocator


class Side(DropIn):
    """An allocator with SGLang's methods; every page in use, of every pool, has a stamp of its own."""

    def __init__(self, inner, page_size):
        super().__init__(inner)
        self.page_size = page_size
        self.rows, self.dead, self.held = [], [], []
        self._stamps = {}
        self._next = itertools.cycle(range(1, 251))

    def sides(self):
        """{pool: (its allocator, slots a page, ids of its live pages, where they lie)}."""
        inner, size = self.inner, self.page_size
        ids = sorted({slot // size * size for row in self.rows for slot in row})
        found = {"full": (inner.full_attn_allocator, size, ids, inner.translate_kv_loc(ints(ids)))}
        if hasattr(inner, "swa_attn_allocator"):
            ids = {slot // size * size for row, dead in zip(self.rows, self.dead, strict=True) for slot in row[dead:]}
            places = inner.translate_loc_from_full_to_swa(ints(sorted(ids)))
            found["swa"] = (inner.swa_attn_allocator, size, sorted(ids), places)
        if hasattr(inner, "mamba_allocator"):
            places = inner.mamba_allocator.translate_kv_loc(ints(self.held))
            found["mamba"] = (inner.mamba_allocator, 1, self.held, places)
        return found

    def check(self):
        """No two live pages share a byte, every stamp has followed its page, and the counts are those of the rows."""
        raw, taken = self.inner.unified_buffer._raw, []
        for name, (pool, size, ids, places) in self.sides().items():
            assert pool.allocated_count() == len(ids) * size
            for id_, place in zip(ids, places.tolist(), strict=True):
                start = place * pool.entry_bytes
                assert place % size == 0
                assert place >= pool.min_slot_index
                page = raw[start : start + size * pool.entry_bytes]
                taken.append((start, start + page.numel()))
                if (name, id_) in self._stamps:
                    assert (page == self._stamps[name, id_]).all(), f"page {id_} of {name} has lost its bytes"
                else:
                    page.fill_(self._stamps.setdefault((name, id_), next(self._next)))
        taken.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken)), "two pages share bytes"
        self._stamps = {
            (name, id_): self._stamps[name, id_] for name, (_, _, ids, _) in self.sides().items() for id_ in ids
        }

    def figures(self):
        """Slots and states in use."""
        return [pool.allocated_count() for pool, *_ in self.sides().values()]


def ints(values):
    return torch.tensor(list(values), dtype=torch.int64)


class Script:
    """The same random calls to every side: rows that grow, lose windows and are freed, and states.

    can_grow: whether rows grow by extend and decode, too. exact: whether all sides must have the same capacity; if not,
    the first one may have less than the others, and is asked for no more than that, or for more than any has.
    """

    def __init__(self, sides, page_size, seed, *, can_grow=True, exact=True):
        self.sides, self.page_size, self.exact = sides, page_size, exact
        self.rng = random.Random(seed)
        self.in_group = False
        inner = sides[0].inner
        self.acts = [self.start, self.start, self.finish, self.cut, self.group, self.flush]
        self.acts += [self.extend, self.extend, self.decode] if can_grow else []
        self.acts += [self.slide, self.slide] if hasattr(inner, "swa_attn_allocator") else []
        self.acts += [self.take_states, self.give_states] if hasattr(inner, "mamba_allocator") else []

    def run(self, num_steps):
        """Play, and check all sides after every step; at the end everything is given back."""
        for _ in range(num_steps):
            self.rng.choice(self.acts)()
            self.compare()
        if self.in_group:
            self.group()
        while self.sides[0].rows:
            self.finish()
        for side in self.sides:
            if side.held:
                side.inner.mamba_allocator.free(ints(side.held))
                side.held = []
        self.compare()
        for side in self.sides:
            assert side.inner.verify_byte_accounting() == []

    def compare(self):
        """All sides have the same in use and available, and rows of the same pages under other names."""
        waiting = self.in_group
        for side in self.sides:
            if not waiting:
                side.check()
        if not waiting:
            assert len({tuple(side.figures()) for side in self.sides}) == 1
        rooms = [side.inner.available_size() for side in self.sides]
        assert len(set(rooms)) == 1 if self.exact else rooms[0] == min(rooms), rooms
        size = self.page_size
        names = {
            tuple(slot // size for slot in slots)
            for rows in zip(*(side.rows for side in self.sides), strict=True)
            for slots in zip(*rows, strict=True)
        }
        for column in zip(*names, strict=True):
            assert len(set(column)) == len(names), "pages of one side are not those of another"

    def amount(self, rooms):
        """How many to ask for: what all have, or more than any has."""
        if self.rng.random() < 0.2:
            return max(rooms) + self.rng.randint(1, 3)
        return min(self.rng.randint(0, 4), *rooms)

    def all_agree(self, lens, ends):
        """Whether rows can grow so far on all sides, or on none."""
        size = self.page_size
        num_pages = sum(-(-end // size) - -(-length // size) for length, end in zip(lens, ends, strict=True))
        return len({num_pages * size <= side.inner.available_size() for side in self.sides}) == 1

    def everywhere(self, name, *args_of):
        """One call to each side; they answer alike but for names."""
        answers = [getattr(side, name)(*args) for side, args in zip(self.sides, args_of, strict=True)]
        assert len({answer is None for answer in answers}) == 1, f"{name}: only some sides are short"
        patterns = {None if a is None else tuple(slot % self.page_size for slot in a.tolist()) for a in answers}
        assert len(patterns) == 1, name
        return None if answers[0] is None else [answer.tolist() for answer in answers]

    def start(self):
        """A row of whole pages."""
        size = self.page_size
        num_pages = self.amount([side.inner.available_size() // size for side in self.sides])
        rows = self.everywhere("alloc", *[(num_pages * size,)] * len(self.sides))
        if rows and rows[0]:
            for side, row in zip(self.sides, rows, strict=True):
                side.rows.append(row)
                side.dead.append(0)

    def extend(self):
        """A row from nothing and one that is there grow."""
        old = self.rng.randrange(len(self.sides[0].rows) + 1)
        new = [self.rng.randint(1, 3 * self.page_size) for _ in range(2)]
        args = []
        for side in self.sides:
            rows = [[], *side.rows[old : old + 1]]
            lens = [len(row) for row in rows]
            ends = [length + more for length, more in zip(lens, new, strict=False)]
            args.append((lens, ends, [row[-1] if row else -1 for row in rows]))
        if not self.all_agree(*args[0][:2]):
            return
        slots = self.everywhere("alloc_extend", *args)
        for side, part in zip(self.sides, slots or [], strict=False):
            side.rows.append(part[: new[0]])
            side.dead.append(0)
            if old < len(side.rows) - 1:
                side.rows[old] = side.rows[old] + part[new[0] :]

    def decode(self):
        """All rows grow by one."""
        if not self.sides[0].rows:
            return
        args = [([len(row) + 1 for row in side.rows], [row[-1] for row in side.rows]) for side in self.sides]
        if not self.all_agree([end - 1 for end in args[0][0]], args[0][0]):
            return
        slots = self.everywhere("alloc_decode", *args)
        for side, part in zip(self.sides, slots or [], strict=False):
            side.rows = [[*row, slot] for row, slot in zip(side.rows, part, strict=True)]

    def finish(self):
        """Free a row, by one of the calls there are."""
        if not self.sides[0].rows:
            return
        at, way = self.rng.randrange(len(self.sides[0].rows)), self.rng.randrange(3)
        for side in self.sides:
            row, dead = side.rows.pop(at), side.dead.pop(at)
            if dead:
                side.free_full_segment(ints(row[:dead]), start_pos=0)
            self.give(side, row, dead, way)

    def cut(self):
        """Free the end of a row, whole pages at a time."""
        long = [at for at, row in enumerate(self.sides[0].rows) if len(row) > self.sides[0].dead[at] + self.page_size]
        if not long:
            return
        at, way = self.rng.choice(long), self.rng.randrange(3)
        first = self.sides[0].dead[at] // self.page_size + 1
        start = self.rng.randint(first, (len(self.sides[0].rows[at]) - 1) // self.page_size) * self.page_size
        for side in self.sides:
            self.give(side, side.rows[at], start, way)
            side.rows[at] = side.rows[at][:start]

    def give(self, side, row, start, way):
        """Free the end of a row."""
        if way == 0:
            side.free(ints(row[start:]))
        elif way == 1:
            side.free_segment(ints(row[start:]), start_pos=start)
        else:
            middle = start + (len(row) - start) // self.page_size // 2 * self.page_size
            side.free_segments([(ints(row[start:middle]), start), (ints(row[middle:]), middle)])

    def slide(self):
        """The windows of a row move on, over whole pages; outside a group, where all free them at once."""
        long = [at for at, row in enumerate(self.sides[0].rows) if len(row) > self.sides[0].dead[at] + self.page_size]
        if self.in_group or not long:
            return
        at, way = self.rng.choice(long), self.rng.randrange(2)
        for side in self.sides:
            start, row = side.dead[at], side.rows[at]
            part = ints(row[start : start + self.page_size])
            if way:
                side.free_swa(part)
            else:
                side.free_swa_segment(part, start_pos=start)
            side.dead[at] += self.page_size

    def take_states(self):
        """States for new requests."""
        rooms = [side.inner.mamba_allocator.schedulable_available_size() for side in self.sides]
        num_states = self.amount(rooms)
        for side in self.sides:
            slots = side.inner.mamba_allocator.alloc(num_states)
            assert (slots is None) == (num_states > max(rooms))
            side.held += [] if slots is None else slots.tolist()

    def give_states(self):
        """Free one of them, outside a group, where all sides free it at once."""
        if self.in_group or not self.sides[0].held:
            return
        at = self.rng.randrange(len(self.sides[0].held))
        for side in self.sides:
            side.inner.mamba_allocator.free(ints([side.held.pop(at)]))

    def group(self):
        """Open a group or close it."""
        for side in self.sides:
            (side.free_group_end if self.in_group else side.free_group_begin)()
        self.in_group = not self.in_group

    def flush(self):
        """Nothing else to do."""
        for side in self.sides:
            side.inner.flush_opportunistic()


def classes_of(**modules):
    """The classes of some modules under one name."""
    found = {}
    for module in modules.values():
        found |= {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return SimpleNamespace(**found)
