"""Values on a device are written to while the library whose backend they are of is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests import simulated_accelerator
from tests.service.conftest import WriteLibrary
from tests.service.doors import SECONDS, Doors, door_library
from tests.service.running_daemon import Background, wait_for

SHARED_WORKERS = 1
X = np.arange(6.0)
LIBRARY = (
    Path(simulated_accelerator.__file__).read_text()
    + door_library("door")
    + """
from opdispatch import ops, register_backend

accelerator = Accelerator()
register_backend(accelerator)


def enter_there_(self, folder, label):
    wait(folder, label)
    self._memory += 1
    return self


def hold_(self, folder, label):
    enter_there_(self, folder, label)


def add_(self, number):
    self._memory += number
    return self


def enter_and_call_(self, folder, label):
    wait(folder, label)
    self._memory += 1
    return ops.door.add_(self, 10.0)


lib.define("hold_(Tensor(a!) self, str folder, str label) -> ()")
lib.impl("hold_", hold_, "PrivateUse1")
lib.define("add_(Tensor(a!) self, float number) -> Tensor(a!)")
lib.define("enter_and_call_(Tensor(a!) self, str folder, str label) -> Tensor(a!)")
lib.impl("enter_", enter_there_, "PrivateUse1")
lib.impl("add_", add_, "PrivateUse1")
lib.impl("enter_and_call_", enter_and_call_, "PrivateUse1")
"""
)
NEXT = f"{LIBRARY}\n# next\n"
Replace = Callable[[], object]


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with closing(Doors(tmp_path)) as doors:
        yield doors


@pytest.fixture(params=["load", "rollback"])
def replace(
    request: pytest.FixtureRequest, shared: oc.Session, write_library: WriteLibrary
) -> Replace:
    """Load the library, and give what puts another version in its place."""
    if request.param == "rollback":
        shared.load(write_library("door", LIBRARY))
        shared.load(write_library("door", NEXT))
        return lambda: shared.rollback("door")
    shared.load(write_library("door", LIBRARY))
    return lambda: shared.load(write_library("door", NEXT))


def in_flight(session: oc.Session) -> int:
    return sum(each.calls_in_flight for each in session.interpreters())


def test_read_during_a_write_neither_waits_nor_loses_it(
    shared: oc.Session, replace: Replace, doors: Doors
):
    """Nor does it wait for it."""
    x = shared.put(X).to("privateuseone:1")
    writing = shared.submit("door::enter_", x, doors.folder, "old")
    assert doors.next_inside() == "old"
    replace()
    np.testing.assert_array_equal(x.numpy(), X)
    doors.let_out()
    writing.result(SECONDS)
    np.testing.assert_array_equal(x.numpy(), X + 1)
    shared.call("door::add_", x, 10.0)
    np.testing.assert_array_equal(x.numpy(), X + 11)


def test_a_write_of_the_next_version_waits_for_those_of_the_one_before(
    shared: oc.Session, replace: Replace, doors: Doors
):
    x = shared.put(X).to("privateuseone:1")
    writing = shared.submit("door::enter_", x, doors.folder, "old")
    assert doors.next_inside() == "old"
    replace()
    later = shared.submit("door::add_", x, 10.0)
    assert wait_for(lambda: in_flight(shared) == 2, SECONDS)
    np.testing.assert_array_equal(x.numpy(), X)
    assert not later.done()
    doors.let_out()
    assert writing.result(SECONDS) is x
    assert later.result(SECONDS) is x
    np.testing.assert_array_equal(x.numpy(), X + 11)


def test_a_program_waits_as_well(shared: oc.Session, replace: Replace, doors: Doors):
    def add() -> None:
        with shared.program() as p:
            p.ops.door.add_(x, 10.0)

    x = shared.put(X).to("privateuseone:1")
    writing = shared.submit("door::enter_", x, doors.folder, "old")
    assert doors.next_inside() == "old"
    replace()
    with Background(add) as adding:
        assert wait_for(lambda: in_flight(shared) == 2, SECONDS)
        doors.let_out()
        writing.result(SECONDS)
        adding.result()
    np.testing.assert_array_equal(x.numpy(), X + 11)


def test_write_that_waits_past_its_timeout_never_starts(
    shared: oc.Session, write_library: WriteLibrary, doors: Doors
):
    shared.load(write_library("door", LIBRARY))
    x = shared.put(X).to("privateuseone:1")
    writing = shared.submit("door::enter_", x, doors.folder, "old")
    assert doors.next_inside() == "old"
    shared.load(write_library("door", NEXT))
    with (
        oc.connect(shared.address, timeout=1.0) as hasty,
        pytest.raises(oc.DeadlineExceededError),
    ):
        hasty.call("door::add_", x, 10.0)
    assert wait_for(lambda: in_flight(shared) == 1, SECONDS), "it waits there no more, either"
    doors.let_out()
    writing.result(SECONDS)
    shared.call("door::add_", x, 100.0)
    np.testing.assert_array_equal(x.numpy(), X + 101)


def test_kernel_that_calls_the_next_version_with_its_argument_does_not_wait(
    shared: oc.Session, replace: Replace, doors: Doors
):
    """It hands on the array itself."""
    x = shared.put(X).to("privateuseone:1")
    writing = shared.submit("door::enter_and_call_", x, doors.folder, "old")
    assert doors.next_inside() == "old"
    replace()
    doors.let_out()
    assert writing.result(SECONDS) is x
    np.testing.assert_array_equal(x.numpy(), X + 11)


def test_a_library_that_uses_the_backend_of_another_one_waits_for_its_own_calls(
    shared: oc.Session, write_library: WriteLibrary, doors: Doors
):
    """Which array a call gets was decided when it began, also if its library stays."""
    backend, _, kernels = LIBRARY.partition(door_library("door"))
    _, _, kernels = kernels.partition("register_backend(accelerator)\n")
    backend += (
        "\nfrom opdispatch import register_backend\n"
        "accelerator = Accelerator()\nregister_backend(accelerator)\n"
    )
    door = door_library("door", max_concurrency=2)
    shared.load(write_library("backend", backend))
    shared.load(write_library("door", f"{door}from opdispatch import ops\n{kernels}"))
    x = shared.put(X).to("privateuseone:1")
    writing = shared.submit("door::hold_", x, doors.folder, "old")
    assert doors.next_inside() == "old"
    shared.load(write_library("backend", f"{backend}# next\n"))
    later = shared.submit("door::add_", x, 10.0)
    assert wait_for(lambda: in_flight(shared) == 2, SECONDS)
    np.testing.assert_array_equal(x.numpy(), X)
    assert not later.done()
    doors.let_out()
    writing.result(SECONDS)
    later.result(SECONDS)
    np.testing.assert_array_equal(x.numpy(), X + 11)
