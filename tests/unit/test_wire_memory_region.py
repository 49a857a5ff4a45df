"""Sealed regions: what an owner makes, and what a receiver refuses before it maps anything."""

import fcntl
import gc
import os
import resource
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.errors import WireError
from opdispatch_wire.shared_memory.memory_region import MappedRegion, OwnedRegion
from opdispatch_wire.shared_memory.shared_mapping import PAGE, SharedMapping, is_supported
from tests.shared_memory_lane import own_mappings

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@pytest.fixture(autouse=True)
def nothing_is_left():
    gc.collect()  # what earlier tests have left must not go in the middle of one of these
    before, descriptors = own_mappings(), os.listdir("/proc/self/fd")
    yield
    assert own_mappings() == before
    assert len(os.listdir("/proc/self/fd")) == len(descriptors)


@pytest.fixture
def owned():
    region = OwnedRegion(4 * PAGE)
    yield region
    region.close()


def whole(mapping):
    window = mapping.window(0, mapping.size, writable=mapping.writable)
    return window.array((mapping.size,), np.dtype(np.uint8))


def memfd(size, seals=SEALS, flags=0):
    descriptor = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def test_this_platform_has_what_it_takes():
    assert is_supported()


def test_an_owned_region_is_sealed_at_its_size(owned):
    assert fcntl.fcntl(owned.descriptor, fcntl.F_GET_SEALS) == SEALS
    for size in (PAGE, 8 * PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(owned.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(owned.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert not os.get_inheritable(owned.descriptor)


def test_writes_to_a_region_are_visible_to_its_readers(owned):
    reader = MappedRegion(os.dup(owned.descriptor))
    writer = MappedRegion(os.dup(owned.descriptor), writable=True)
    whole(owned.mapping)[PAGE] = 7
    view = reader.view(PAGE, 2)
    assert (view.readonly, bytes(view)) == (True, b"\7\0")
    writer.view(PAGE + 1, 1)[0] = 8
    assert bytes(view) == b"\7\x08"


def test_a_mapping_keeps_no_descriptor_and_outlives_its_region(owned):
    region = MappedRegion(os.dup(owned.descriptor))
    whole(owned.mapping)[:] = 3
    view = region.view(0, 10)
    del region
    assert bytes(view) == b"\3" * 10
    assert own_mappings() == {"descriptors": 1, "mappings": 2}


def test_a_second_mapping_needs_no_descriptor(owned):
    mapped = MappedRegion(os.dup(owned.descriptor), writable=True).mapping
    again = mapped.again(writable=False)
    whole(owned.mapping)[5] = 9
    assert whole(again)[5] == 9
    with pytest.raises(ValueError, match="read-only"):
        whole(again)[5] = 1


@pytest.mark.parametrize("writable", [False, True])
def test_a_detached_extent_keeps_its_contents_and_its_neighbours_stay_shared(owned, writable):
    theirs = MappedRegion(os.dup(owned.descriptor), writable=writable).mapping
    ours = whole(owned.mapping)
    ours[:] = 1
    seen = whole(theirs)
    theirs.detach(PAGE + 10, PAGE)  # two pages of the four
    ours[:] = 2
    assert seen.tolist() == [2] * PAGE + [1] * (2 * PAGE) + [2] * PAGE
    if writable:
        seen[:] = 5
        assert ours.tolist() == [5] * PAGE + [2] * (2 * PAGE) + [5] * PAGE


def test_a_retired_mapping_keeps_only_what_was_detached(owned):
    theirs = MappedRegion(os.dup(owned.descriptor)).mapping
    whole(owned.mapping)[:] = 1
    theirs.detach(PAGE, 10)
    before = own_mappings()["mappings"]
    assert before == 3  # the owner's, and one at either side of the copy
    theirs.retire([(PAGE, 10)])
    assert own_mappings()["mappings"] == 1
    window = theirs.window(PAGE, PAGE, writable=False)
    del theirs
    assert window.array((PAGE,), np.dtype(np.uint8)).tolist() == [1] * PAGE


def test_bytes_outside_of_a_region_are_refused(owned):
    region = MappedRegion(os.dup(owned.descriptor))
    assert len(region.view(4 * PAGE, 0)) == 0
    for offset, length in ((0, 4 * PAGE + 1), (4 * PAGE, 1), (2**64 - 1, 1), (1, 2**64 - 1)):
        with pytest.raises(WireError, match=r"^\$\.x: .* exceed the region of 16384"):
            region.view(offset, length, at="$.x")
    for offset, length in ((-1, 1), (0, -1)):
        with pytest.raises(WireError, match="exceed the region"):
            region.view(offset, length)


@given(st.integers(-(2**65), 2**65), st.integers(-(2**65), 2**65))
def test_a_view_has_its_bytes_or_is_refused(offset, length):
    owned = OwnedRegion(2 * PAGE)
    region = MappedRegion(os.dup(owned.descriptor))
    owned.close()
    try:
        view = region.view(offset, length)
    except WireError:
        assert not (0 <= offset <= offset + length <= region.size)
    else:
        assert len(view) == length
        assert sum(view) == 0  # touched, all of it


# -- hostile descriptors --------------------------------------------------------------------------


def a_pipe():
    read, write = os.pipe()
    os.close(write)
    return read


def a_file():
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE)
        return os.dup(file.fileno())


def a_socket():
    with socket.socket() as sock:
        return os.dup(sock.fileno())


def a_file_in_dev_shm():
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(PAGE)
        return os.dup(file.fileno())


HOSTILE = {
    "pipe": (a_pipe, "not that of a memfd"),
    "file": (a_file, "not that of a memfd"),
    "socket": (a_socket, "not that of a memfd"),
    "device": (lambda: os.open("/dev/zero", os.O_RDWR), "not that of a memfd"),
    "folder": (lambda: os.open("/", os.O_RDONLY), "not that of a memfd"),
    "path": (lambda: os.open("/", os.O_PATH), "not that of a memfd"),
    "tmpfs": (a_file_in_dev_shm, "not sealed|not that of a memfd"),
    "unsealed": (lambda: memfd(PAGE, 0), "not sealed against shrinking and growing and further"),
    "may shrink": (
        lambda: memfd(PAGE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
        "not sealed against shrinking;",
    ),
    "empty": (lambda: memfd(0), "0 bytes; expected 1 to"),
    "too large": (lambda: memfd((1 << 20) + 1), "1048577 bytes; expected 1 to 1048576"),
    "sealed against writing": (
        lambda: memfd(PAGE, SEALS | fcntl.F_SEAL_WRITE),
        "cannot map the region",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_descriptor_is_refused_and_closed(kind):
    make, message = HOSTILE[kind]
    descriptor = make()
    with pytest.raises(WireError, match=rf"^region 7: .*({message})"):
        MappedRegion(descriptor, writable=True, max_bytes=1 << 20, at="region 7")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_huge_pages_are_refused():
    try:
        descriptor = memfd(1 << 21, flags=os.MFD_HUGETLB)
    except OSError:
        pytest.skip("no huge pages here")
    with pytest.raises(WireError, match="huge pages"):
        MappedRegion(descriptor)


def test_no_room_for_a_mapping_is_an_error_and_leaves_nothing(owned):
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    descriptor = memfd(1 << 34)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), hard))
        with pytest.raises(WireError, match=r"cannot map the region .*Cannot allocate memory"):
            MappedRegion(descriptor)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_a_failed_mapping_of_its_own_leaves_no_descriptor():
    with pytest.raises((OSError, OverflowError)):
        OwnedRegion(1 << 62)
    with pytest.raises(OSError, match="Bad file descriptor"):
        SharedMapping(1023, PAGE, writable=False)
