"""Fixtures of the unit tests: a dispatcher that is checked afterwards, and a lane with a peer."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opdispatch import Dispatcher, KernelFunction, Library, parse_dispatch_key, parse_schema
from opdispatch.dispatch import compiled_call
from opdispatch.library.ops import Ops
from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from tests.unit import cupy_stand_in as stand_in
from tests.unit.lane_peer import LIMIT, Peer
from tests.waits import join


@pytest.fixture
def dispatcher():
    """A fresh dispatcher, whose invariants must hold when the test is over."""
    made = Dispatcher()
    yield made
    assert made.check_invariants() == []


@pytest.fixture(params=["compiled", "interpreted"])
def caller(request, monkeypatch):
    """Run a test on the generated entry points of operators, and on their readable twin."""
    monkeypatch.setattr(compiled_call, "COMPILE", request.param == "compiled")
    return request.param


@pytest.fixture
def define(dispatcher):
    """``define(schema, CPU=function, ...)``: an operator with kernels, as a handle."""

    def define(schema, **kernels):
        parsed = parse_schema(schema)
        dispatcher.register_def(parsed)
        for key, kernel in kernels.items():
            if not isinstance(kernel, KernelFunction):
                kernel = KernelFunction.from_unboxed(kernel)
            dispatcher.register_impl(parsed.name, parse_dispatch_key(key), kernel)
        return dispatcher.get_schema(parsed.name)

    return define


@pytest.fixture
def library(dispatcher):
    """``library(ns, kind, key)``: a library of the test's dispatcher."""

    def library(*args):
        return Library(*args, dispatcher=dispatcher)

    return library


@pytest.fixture
def lib(library):
    return library("t", "DEF")


@pytest.fixture
def ops(dispatcher):
    return Ops(dispatcher)


@pytest.fixture
def add(dispatcher):
    """``add(schema, result)``: an operator that returns the result; the handles to undo it."""

    def add(schema, result=None):
        parsed = parse_schema(schema)
        kernel = KernelFunction.from_unboxed(lambda *args, **kwargs: result)
        return [
            dispatcher.register_def(parsed),
            dispatcher.register_impl(parsed.name, None, kernel),
        ]

    return add


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """The other side of a lane."""
    listener = lane_socket.listen(str(tmp_path / "lane"))
    peer = Peer(listener)
    yield peer
    listener.close()
    if peer.connection is not None:
        peer.connection.close()


@pytest.fixture
def lane(peer: Peer, tmp_path: Path) -> Iterator[BlockingLane]:
    """The calling side, with ``peer`` at the other end."""
    accepting = threading.Thread(target=peer.accept)
    accepting.start()
    lane = BlockingLane.connect(str(tmp_path / "lane"), LIMIT)
    join(accepting)
    yield lane
    lane.close()


@pytest.fixture
def cupy_stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module ``cupy``, whether it is installed or not."""
    module = stand_in.make_module()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module
