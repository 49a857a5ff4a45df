"""Named results are named tuples on every lane, in programs, and where they stay."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.endpoint import LaneChoice
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon

X = np.arange(3.0)

NAMED = """\
from opdispatch import Library

lib = Library("named", "DEF")
lib.define("minmax(Tensor x) -> (Tensor least, Tensor greatest)")
lib.define("count(Tensor x) -> (int number, str kind, Tensor[] parts)")
lib.define("plain(Tensor x) -> (Tensor, Tensor)")
lib.define("write_(Tensor(a!) x) -> (Tensor(a!) written, int n)")
lib.impl("minmax", lambda x: (x.min(), x.max()), "CPU")
lib.impl("count", lambda x: (x.size, x.dtype.kind, [x, x]), "CPU")
lib.impl("plain", lambda x: (x, x), "CPU")


def write_(x):
    x += 1
    return x, 1


lib.impl("write_", write_, "CPU")
"""

OUTER = """\
from opdispatch import Library, ops

lib = Library("outer", "DEF")
lib.define("spread(Tensor x) -> Tensor")


def spread(x):
    found = ops.named.minmax(x)
    return found.greatest - found.least


lib.impl("spread", spread, "CPU")
"""


@pytest.fixture(params=["local", "stream", "grpc"])
def lane(request: pytest.FixtureRequest) -> LaneChoice:
    lane: LaneChoice = request.param
    return lane


@pytest.fixture
def named(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary, lane: LaneChoice
) -> Iterator[oc.Session]:
    shared.load(write_library("named", NAMED), interpreter="worker-1")
    shared.load(write_library("outer", OUTER), interpreter="worker-2")
    with lent_daemon.connect(lane=lane) as session:
        yield session


def test_results_have_names(named: oc.Session):
    for _ in range(2):  # the second call goes directly, where calls can
        result = named.ops.named.minmax(X)
        assert (result.least, result.greatest) == (0, 2)
        assert result == (0, 2)
    assert type(copy.copy(result)) is type(pickle.loads(pickle.dumps(result))) is type(result)
    counted = named.submit("named::count", X).result()
    assert (counted.number, counted.kind, len(counted.parts)) == (3, "f", 2)
    assert [each.greatest for each in named.map("named::minmax", [(X,), (X + 1,)])] == [2, 3]
    assert named.ops.named.write_(x := X.copy()).written is x
    assert type(named.ops.named.plain(X)) is tuple
    assert named.ops.outer.spread(X) == 2


def test_results_that_stay_and_those_of_programs_have_names(named: oc.Session):
    kept = named.with_options(remote=True).ops.named.minmax(named.put(X))
    assert kept.greatest.numpy() == 2
    with named.program() as program:
        found = program.ops.named.minmax(X)
        program.output(found, found[1], program.ops.named.plain(X))
        program.output(found, remote=True)
    whole, greatest, plain, remote = program.result
    assert (whole.least, whole.greatest, greatest) == (0, 2, 2)
    assert type(plain) is list
    assert remote.greatest.numpy() == 2
    assert named.as_program(lambda x: named.ops.named.minmax(x))(X).greatest == 2


async def test_asyncio_results_have_names(
    named: oc.Session, shared_daemon: RunningDaemon, lane: LaneChoice
):
    async with oc.aio.connect(shared_daemon.address, lane=lane) as session:
        for _ in range(2):
            assert (await session.ops.named.minmax(X)).greatest == 2
        assert (await session.call("named::minmax", X, remote=True)).least is not None
        async with session.program() as program:
            program.output(program.ops.named.minmax(X))
        assert program.result.greatest == 2
