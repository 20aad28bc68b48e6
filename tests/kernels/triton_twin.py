"""Compares Triton's kernels with plain torch and whole allocators with the host's, in an interpreter that has Triton.

TRITON_INTERPRET=1 python tests/kernels/triton_twin.py       without it the kernels run on the GPU
"""

import os
import random
import sys

import numpy as np
import torch
from device_pair import DevicePair

from kvstead.allocators import DevicePagedAllocator, PagedAllocator
from kvstead.kernels import device_ops, device_rows, triton_ops

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
MANY = 1100  # entries of more than two blocks


def same(name, *args):
    """Both answers, which must be equal, of one type."""
    plain, triton = getattr(device_ops, name)(*args), getattr(triton_ops, name)(*args)
    assert plain.dtype == triton.dtype, name
    assert torch.equal(plain, triton), (name, args, plain, triton)


def compare_growth(rnd, page_size, dtype):
    """Rows of all lengths, some that do not grow, and the same rows growing by one."""
    prefix = np.array([rnd.choice([0, 1, rnd.randrange(40)]) for _ in range(rnd.randrange(9))], dtype=np.int64)
    seq = prefix + np.array([rnd.choice([0, 1, rnd.randrange(300)]) for _ in prefix], dtype=np.int64)
    plan = np.empty((device_rows.ROW_COLUMNS, seq.size), dtype=np.int64)
    _, num_slots, num_pages = device_rows.plan_rows(prefix, seq, page_size, 10**6, plan)
    last = [rnd.randrange(5, 50) * page_size + (length - 1) % page_size if length else -1 for length in prefix]
    last = torch.tensor(last, dtype=dtype, device=DEVICE)
    pages = torch.randperm(num_pages + 3).to(DEVICE, dtype)
    rows = torch.from_numpy(plan).to(DEVICE, dtype)
    apart = torch.stack((last, last + 7), dim=1)[:, 0]  # as a column of a wider table
    for places in (last, apart):
        same("extend_slots", rows, places, pages[:num_pages], page_size, int(num_slots))
    opening = np.empty(seq.size, dtype=np.int64)
    _, num_pages = device_rows.plan_decode(seq + 1, page_size, opening)
    opening = torch.from_numpy(opening[:num_pages]).to(DEVICE, dtype)
    for places in (last, apart):
        same("decode_slots", opening, places, torch.arange(7, 7 + num_pages, dtype=dtype, device=DEVICE), page_size)


def compare_pages(rnd, page_size, dtype):
    """Slots of pages, pages of slots, and distinct pages, some of them outside the pool."""
    slots = torch.randint(-3, 400, (rnd.choice([1, 5, MANY]),), dtype=dtype).to(DEVICE)
    same("segment_pages", slots, page_size)
    same("segment_pages", slots[::2], page_size)
    same("expand_pages", slots, page_size)
    marks = torch.full((100,), device_ops.FAR, dtype=torch.int32, device=DEVICE)
    for part in (slots, slots[::2]):
        (plain, count), (triton, other) = (ops.first_seen(part, page_size, marks) for ops in (device_ops, triton_ops))
        assert int(count) == int(other)
        assert torch.equal(plain[: int(count)], triton[: int(count)])
        assert bool((marks == device_ops.FAR).all())


def compare_allocators(rnd, page_size, dtype):
    """A whole life, beside the host's class."""
    device = DevicePagedAllocator(12 * page_size, page_size, index_dtype=dtype, device=DEVICE)
    device._ops = triton_ops
    DevicePair(PagedAllocator(12 * page_size, page_size), device, rnd).run(8)
    device.audit()


def main(num_rounds):
    rnd = random.Random(1)
    torch.manual_seed(1)
    for _ in range(num_rounds):
        for compare in (compare_growth, compare_pages, compare_allocators):
            compare(rnd, rnd.choice([1, 3, 4, 16, 64]), rnd.choice([torch.int32, torch.int64]))
    print(f"{num_rounds} rounds on {DEVICE}: equal")  # noqa: T201 - what the caller looks for


if __name__ == "__main__":
    main(int(sys.argv[1]))
