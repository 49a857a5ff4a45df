"""Libraries are replaced, brought back and unloaded while they are in use."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for

X = np.zeros(2)


def test_a_new_version_replaces_the_old_one_while_clients_call(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    first = shared.load(write_library("const", constant(0))).version
    stop = threading.Event()
    seen: list[list[int]] = [[], []]

    def keep_calling(answers: list[int]) -> None:
        with lent_daemon.connect() as own:
            while not stop.is_set():
                answers.append(own.ops.const.get(X))

    with Background(keep_calling, seen[0]) as one, Background(keep_calling, seen[1]) as other:
        assert wait_for(lambda: all(seen))
        for number in range(1, 8):
            assert shared.load(write_library("const", constant(number))).version == number + first
            assert shared.ops.const.get(X) == number
            assert wait_for(lambda n=number: all(answers[-1] == n for answers in seen))
        stop.set()
        one.result()
        other.result()
    for answers in seen:
        assert answers == sorted(answers)  # never back to an older version
        assert set(answers) == set(range(8))
    assert shared.check_invariants() == []


def test_the_version_before_comes_back_when_the_new_one_is_unloaded(
    shared: oc.Session, write_library: WriteLibrary
):
    first = shared.load(write_library("const", constant(1)))
    second = shared.load(write_library("const", constant(2)))
    active = shared.unload("const", version=second.version)
    assert active is not None
    assert (active.version, active.active) == (first.version, True)
    assert shared.ops.const.get(X) == 1
    third = shared.load(write_library("const", constant(3)))
    assert third.version == second.version + 1
    assert shared.ops.const.get(X) == 3
    versions = shared.libraries(all_versions=True)
    assert [(v.version, v.active) for v in versions] == [
        (first.version, False),
        (third.version, True),
    ]


def test_only_one_version_is_kept_below_the_active_one(
    shared: oc.Session, write_library: WriteLibrary
):
    numbers = [shared.load(write_library("const", constant(n))).version for n in range(4)]
    kept = [library.version for library in shared.libraries(all_versions=True)]
    assert kept == numbers[-2:]
    with pytest.raises(oc.LibraryNotFoundError, match=f"has no version {numbers[0]}; kept: "):
        shared.unload("const", version=numbers[0])
    shared.unload("const", version=numbers[-2])
    assert [v.version for v in shared.libraries(all_versions=True)] == numbers[-1:]
    assert shared.ops.const.get(X) == 3


@pytest.mark.parametrize("place", ["worker-1", "worker-2"])
def test_a_call_in_flight_finishes_in_the_version_that_it_began_in(
    shared: oc.Session, write_library: WriteLibrary, place: str, tmp_path: Path
):
    folder = tmp_path
    # The old version's kernel calls an operator that the new version does not have.
    old = GATE + (
        'lib.define("helper(Tensor x) -> int")\n'
        'lib.impl("helper", lambda x: 100, "CPU")\n'
        'lib.define("outer(Tensor x, str folder) -> int")\n'
        "from opdispatch import ops\n"
        "def outer(x, folder):\n"
        "    return ops.gate.wait(x, folder, 5) + ops.gate.helper(x)\n"
        'lib.impl("outer", outer, "CPU")\n'
    )
    version = shared.load(write_library("gate", old), interpreter="worker-1").version
    with Background(shared.ops.gate.outer, X, str(folder)) as call:
        assert wait_for((folder / "entered-5").exists)
        new = GATE.replace("return answer", "return -answer")
        new = new.replace("int answer=1)", "int answer=1, int unused=0)")
        new = new.replace("def wait(x, folder, answer=1)", "def wait(x, folder, answer, unused)")
        shared.load(write_library("gate", new), interpreter=place)
        kept = {v.version: v for v in shared.libraries(all_versions=True)}
        assert (kept[version].calls_in_flight, kept[version].active) == (1, False)
        with pytest.raises(oc.OperatorNotFoundError):
            shared.ops.gate.outer(X, str(folder))
        (folder / "open").touch()
        assert call.result() == 105
    assert shared.ops.gate.wait(X, str(folder), 3) == -3
    assert shared.check_invariants() == []


def test_a_library_can_be_unloaded_while_it_is_running_calls(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    folder = tmp_path
    shared.load(write_library("gate", GATE))
    with ExitStack() as stack:
        calls = [
            stack.enter_context(Background(shared.ops.gate.wait, X, str(folder), n))
            for n in range(3)
        ]
        assert wait_for(lambda: all((folder / f"entered-{n}").exists() for n in range(3)))
        assert shared.unload("gate") is None
        with pytest.raises(oc.OperatorNotFoundError) as caught:
            shared.ops.gate.wait(X, str(folder))
        assert caught.value.hint == "library 'gate', which had it, was unloaded"
        (folder / "open").touch()
        assert [call.result() for call in calls] == [0, 1, 2]
    shared.load(write_library("gate", GATE))
    assert shared.ops.gate.wait(X, str(folder), 9) == 9


@pytest.mark.parametrize("place", ["worker-1", "worker-2"])
@pytest.mark.parametrize("name", ["gate", "gate2"])
def test_namespace_of_a_library_with_calls_to_finish_can_be_reused(
    shared: oc.Session, write_library: WriteLibrary, name: str, place: str, tmp_path: Path
):
    folder = tmp_path
    shared.load(write_library("gate", GATE), interpreter="worker-1")
    with Background(shared.ops.gate.wait, X, str(folder), 1) as call:
        assert wait_for((folder / "entered-1").exists)
        shared.unload("gate")
        path = write_library(name, GATE.replace("return answer", "return -answer"))
        with Background(shared.load, path, interpreter=place) as load:
            # A library of another name waits for the calls; a new version need not.
            if name == "gate":
                load.result()
            (folder / "open").touch()
            load.result()
        assert call.result() == 1
    assert shared.ops.gate.wait(X, str(folder), 2) == -2
    assert shared.check_invariants() == []


def test_unloading_what_is_not_loaded_says_what_is(shared: oc.Session, write_library: WriteLibrary):
    shared.load(write_library("const", constant(1)))
    with pytest.raises(
        oc.LibraryNotFoundError, match="no library named 'nope' is loaded; loaded: c"
    ):
        shared.unload("nope")
