import pytest
from replayer import replay
from test_vectors import scripts_of

from kvstead.allocators import (
    DeviceHiSparseAllocator,
    DevicePagedAllocator,
    DeviceSWAAllocator,
    DeviceTokenAllocator,
)
from paths import needs_shared


def subjects(script, order, *, checked=False):
    """The device-resident classes that claim to answer a script."""
    if script.kind == "swa":
        sizes = script.size, script.swa_size, script.page_size
        return [DeviceSWAAllocator(*sizes, order=order, checked=checked)]
    if script.kind == "hisparse":
        return [DeviceHiSparseAllocator(script.size, script.page_size, order=order, checked=checked)]
    paged = DevicePagedAllocator(script.size, script.page_size, order=order, checked=checked)
    return [paged] if script.page_size > 1 else [paged, DeviceTokenAllocator(script.size, order=order, checked=checked)]


@needs_shared
@pytest.mark.parametrize(
    ("name", "order"), [("paged_lifo", "lifo"), ("paged_sorted", "sorted"), ("swa", "lifo"), ("hisparse", "lifo")]
)
def test_recorded_answers_on_a_device_under_page_renaming(name, order):
    """Every null, offset, page pattern and count is as recorded, no live page comes twice, and the checks are quiet."""
    for number, script in enumerate(scripts_of(name)):
        for allocator in subjects(script, order, checked=number % 10 == 0):
            replay(script, allocator)


@needs_shared
@pytest.mark.parametrize(("name", "order"), [("token_fifo", "fifo"), ("token_sorted", "sorted")])
def test_answers_on_a_device_id_for_id(name, order):
    """At page size 1 queued and sorted lists give the recorded slots themselves, in groups too."""
    for script in scripts_of(name):
        for allocator in subjects(script, order):
            replay(script, allocator, exact=True)
