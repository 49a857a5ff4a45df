"""An interpreter that can start no more threads, as at a container's limit: slower, never stuck."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.test_far_interpreters import with_far_one

WORKERS = 1
X = np.zeros(2)
BIG = 8 << 20

# A stack that no thread can get: what the system says then is what it says at its limit.
LIBRARY = f"""\
import threading
import time

import numpy as np
from opdispatch import Library

lib = Library("scarce", "DEF")
lib.define("threads(Tensor x, bool are_any) -> int")
lib.define("quick(Tensor x) -> int")
lib.define("slow(Tensor x) -> int")
lib.define("large(Tensor x) -> Tensor")


def threads(x, are_any):
    return threading.stack_size(0 if are_any else 1 << 46)


def slow(x):
    time.sleep(0.05)
    return 2


lib.impl("threads", threads, "CPU")
lib.impl("quick", lambda x: 1, "CPU")
lib.impl("slow", slow, "CPU")
lib.impl("large", lambda x: np.ones({BIG}, np.uint8), "CPU")
"""

NEAR = """\
from opdispatch import Library, ops

lib = Library("near", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: ops.scarce.quick(x), "CPU")
"""


def check_calls(session: oc.Session) -> None:
    ops = session.ops.scarce
    for _ in range(2):  # without threads, and when there are some again
        assert in_parallel(lambda: ops.quick(X)) == [1] * 6
        assert in_parallel(lambda: ops.slow(X)) == [2] * 6
        assert in_parallel(lambda: ops.large(X).sum()) == [BIG] * 6
        ops.threads(X, are_any=True)
    assert {one.state for one in session.interpreters()} == {"ready"}


def in_parallel(call: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(6) as pool:
        return [future.result() for future in [pool.submit(call) for _ in range(6)]]


@pytest.mark.parametrize(
    ("direct", "calls_before"),
    [(True, 20), (True, 0), (False, 0)],
    ids=["direct", "no direct connection yet", "daemon"],
)
def test_calls_go_on_without_new_threads(
    start_daemon: StartDaemon, write_library: WriteLibrary, direct: bool, calls_before: int
):
    with start_daemon(workers=1).connect(direct=direct, timeout=60) as session:
        session.load(write_library("scarce", LIBRARY))
        ops = session.ops.scarce
        for _ in range(calls_before):
            assert ops.quick(X) == 1
        ops.threads(X, are_any=False)
        check_calls(session)


def test_calls_over_a_stream_take_turns_in_the_threads_that_there_are(
    tmp_path: Path, write_library: WriteLibrary
):
    with with_far_one(tmp_path) as daemon, daemon.connect(timeout=60) as session:
        session.load(write_library("scarce", LIBRARY), on="far")
        session.load(write_library("near", NEAR), on="worker-1")
        session.ops.scarce.threads(X, are_any=False)
        # Calls that kernels make have threads of their own, and there has been none yet.
        with pytest.raises(
            oc.KernelError, match="cannot start a thread for the call of scarce::quick"
        ):
            session.ops.near.get(X)
        check_calls(session)
        assert session.ops.near.get(X) == 1
