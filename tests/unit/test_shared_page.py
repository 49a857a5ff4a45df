"""Memory that one process writes and another one reads."""

from __future__ import annotations

import mmap
import os
import sys

import pytest

from opdispatch_server.shared_page import make_memory, open_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfds")


def test_memory_shows_what_is_written_and_outlives_its_descriptor():
    descriptor = make_memory("page", 4096)
    memory = mmap.mmap(descriptor, 4096)
    found = open_memory(os.getpid(), descriptor, 4096)
    os.close(descriptor)
    assert found is not None
    memory[:3] = b"abc"
    assert found[:3] == b"abc"


def test_memory_that_could_shrink_is_not_opened():
    descriptor = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, 4096)
    assert open_memory(os.getpid(), descriptor, 4096) is None
    os.close(descriptor)
    assert open_memory(os.getpid(), descriptor, 4096) is None
    assert open_memory(os.getpid(), 0, 4096) is None
