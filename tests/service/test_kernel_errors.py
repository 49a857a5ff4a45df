"""Errors of kernels are caught by their built-in class, however a call travels."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon

X = np.arange(3.0)

ERRORS = """\
import builtins

from opdispatch import Library

lib = Library("errors", "DEF")
lib.define("fail(Tensor x, str name) -> Tensor")
lib.define("write(Tensor x) -> Tensor")
lib.define("double(Tensor x) -> Tensor")


class ValueError_(ValueError):
    pass


def fail(x, name):
    if name == "own":
        raise ValueError_("a class of the library's own")
    if name == "open":
        return open("/nowhere/at/all")
    if name == "group":
        raise ExceptionGroup("several", [ValueError("first"), KeyError("second")])
    try:
        raise KeyError("cause")
    except KeyError as cause:
        error = getattr(builtins, name)("it broke")
        error.add_note("see the manual")
        raise error from cause


def write(x):
    x[0] = 1
    return x.copy()


lib.impl("fail", fail, "CPU")
lib.impl("write", write, "CPU")
lib.impl("double", lambda x: x * 2, "CPU")
"""

NESTED = """\
from opdispatch import Library, ops

lib = Library("nested", "DEF")
lib.define("fail(Tensor x, str name) -> Tensor")
lib.define("caught(Tensor x, str name) -> str")


def caught(x, name):
    try:
        ops.errors.fail(x, name)
    except FileNotFoundError as error:
        return f"not found: {error.errno}"
    except ValueError:
        return "no value"


lib.impl("fail", lambda x, name: ops.errors.fail(x, name), "CPU")
lib.impl("caught", caught, "CPU")
"""


@pytest.fixture(params=["local", "stream", "grpc"])
def lane(request: pytest.FixtureRequest) -> LaneChoice:
    lane: LaneChoice = request.param
    return lane


@pytest.fixture
def errors(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary, lane: LaneChoice
) -> Iterator[oc.Session]:
    """A session with libraries in two interpreters, one of which calls the other."""
    shared.load(write_library("errors", ERRORS), interpreter="worker-1")
    shared.load(write_library("nested", NESTED), interpreter="worker-2")
    with lent_daemon.connect(lane=lane) as session:
        yield session


def test_calls_raise_the_built_in_class_on_every_lane(errors: oc.Session):
    for again in range(2):  # the second call goes directly, where calls can
        with pytest.raises(ValueError, match="it broke") as caught:
            errors.ops.errors.fail(X, "ValueError")
        assert isinstance(caught.value, oc.KernelError), again
        with pytest.raises(ValueError, match="a class of the library's own"):
            errors.submit("errors::fail", X, "own").result()
    with pytest.raises(FileNotFoundError) as missing:
        errors.ops.errors.fail(X, "open")
    assert (missing.value.errno, missing.value.filename) == (2, "/nowhere/at/all")
    with pytest.raises(KeyError, match="it broke"):
        list(errors.map("errors::fail", [(X, "KeyError")]))
    assert errors.ops.errors.double(X)[1] == 2


def test_nested_calls_programs_and_remote_tensors_raise_it_too(errors: oc.Session):
    with pytest.raises(ZeroDivisionError, match="it broke"):
        errors.ops.nested.fail(X, "ZeroDivisionError")
    assert errors.ops.nested.caught(X, "open") == "not found: 2"
    assert errors.ops.nested.caught(X, "UnicodeError") == "no value"
    with pytest.raises(IndexError) as caught, errors.program() as program:
        program.output(program.ops.errors.fail(program.ops.errors.double(X), "IndexError"))
    assert caught.value.facts["step"] == "1"  # type: ignore[attr-defined]  # it is ours, too
    with pytest.raises(OverflowError):
        errors.with_options(remote=True).ops.errors.fail(errors.put(X), "OverflowError")


async def test_asyncio_calls_raise_it_too(
    errors: oc.Session, shared_daemon: RunningDaemon, lane: LaneChoice
):
    async with oc.aio.connect(shared_daemon.address, lane=lane) as session:
        for name, cls in (("ValueError", ValueError), ("TimeoutError", TimeoutError)):
            with pytest.raises(cls, match="it broke"):
                await session.ops.errors.fail(X, name)
        with pytest.raises(LookupError):
            await session.ops.nested.fail(X, "KeyError")
        with pytest.raises(AttributeError):
            async with session.program() as program:
                program.output(program.ops.errors.fail(X, "AttributeError"))


async def test_stop_iteration_and_system_exit_become_plain_kernel_errors(
    errors: oc.Session, shared_daemon: RunningDaemon, lane: LaneChoice
):
    async with oc.aio.connect(shared_daemon.address, lane=lane) as session:
        for name in ("StopIteration", "StopAsyncIteration", "KeyboardInterrupt", "SystemExit"):
            with pytest.raises(oc.KernelError) as caught:
                errors.ops.errors.fail(X, name)
            assert type(caught.value) is oc.KernelError
            with pytest.raises(oc.KernelError):
                await session.ops.errors.fail(X, name)


def test_errors_have_their_cause_their_notes_and_the_users_own_frames(errors: oc.Session):
    with pytest.raises(ValueError, match="it broke, caused by KeyError: 'cause'") as caught:
        errors.ops.nested.fail(X, "ValueError")
    printed = "".join(traceback.format_exception(caught.value))
    for text in (
        "see the manual",
        "direct cause of the following exception",
        "raise error from cause",
        'lib.impl("fail", lambda x, name: ops.errors.fail(x, name), "CPU")',
    ):
        assert text in printed
    with pytest.raises(oc.KernelError) as group:
        errors.ops.errors.fail(X, "group")
    assert "ValueError: first" in group.value.facts["traceback"]


def test_a_write_that_the_schema_does_not_declare_says_how_to_declare_it(errors: oc.Session):
    with pytest.raises(ValueError, match=r'declare it, as in "Tensor\(a!\) x", or write to a copy'):
        errors.ops.errors.write(X)
