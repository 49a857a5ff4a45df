"""Remote tensors and programs of an asyncio session."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor
from tests.service.remote import kept
from tests.service.running_daemon import RunningDaemon, wait_for

X = np.arange(4.0)


@pytest.fixture(params=["local", "stream", "grpc"])
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def nothing_is_kept(session: oc.Session) -> bool:
    return await asyncio.to_thread(wait_for, lambda: not kept(session), 10)


async def test_values_are_put_called_with_fetched_and_freed(
    daemon: RunningDaemon, session: oc.Session, lane: str
):
    async with oc.aio.connect(daemon.address, lane=lane) as client:
        x = await client.put(X)
        assert isinstance(x, oc.AsyncRemoteTensor)
        assert repr(x) == "<AsyncRemoteTensor float64 [4] in worker-1>"
        y = await client.call("park::double", x, remote=True)
        assert (await y.numpy()).tolist() == (X * 2).tolist()
        assert await client.ops.park.increase_(y) is y
        z = await client.with_options(remote=True).ops.park.double(y)
        assert (await z.numpy()).tolist() == ((X * 2 + 1) * 2).tolist()
        assert (await client.call("park::double", [z][0])).tolist() == ((X * 2 + 1) * 4).tolist()
        assert kept(session) == {"worker-1": (3, 96)}
        x.close()
        del y
        gc.collect()
        assert await asyncio.to_thread(wait_for, lambda: kept(session) == {"worker-1": (1, 32)}, 10)
        with pytest.raises(oc.RemoteValueGoneError, match="it was closed"):
            await client.call("park::double", x)
        many = await asyncio.gather(*(client.put(np.full(2, n)) for n in range(50)))
        assert [(await each.numpy())[0] for each in many] == list(range(50))
    assert await nothing_is_kept(session)
    with pytest.raises(oc.RemoteValueGoneError, match="the session is closed"):
        session.call("park::double", z)


async def test_remote_tensor_refuses_operations_that_cannot_await_elements(daemon: RunningDaemon):
    async with oc.aio.connect(daemon.address) as client:
        a, b = await client.put(np.zeros(1)), await client.put(np.zeros(1))
        for use in (
            lambda: bool(a),
            lambda: float(a),
            lambda: a == b,
            lambda: a != 0.0,
            lambda: a < b,
            lambda: 2 + a,
            lambda: -a,
            lambda: a @ X,
            lambda: Tensor(X) * a,
            lambda: np.asarray(a),
            lambda: np.array([a, b]),
            lambda: np.ones(2) == a,
            lambda: np.add(X, a),
            lambda: np.sum(a),
        ):
            with pytest.raises(oc.ArgumentError, match=r"cannot await them .*await .*numpy\(\)"):
                use()
        with pytest.raises(TypeError, match="unsupported operand"):
            a + "one"
        assert {a: 1, b: 2}[b] == 2  # each is itself, as a key
        assert (a == "a", a != None, None in (a, b)) == (False, True, False)  # noqa: E711


async def test_programs(daemon: RunningDaemon, session: oc.Session, lane: str):
    async with oc.aio.connect(daemon.address, lane=lane) as client:
        x = await client.put(X)
        async with client.program() as p:
            doubled = p.ops.park.double(x)
            p.output(doubled)
            p.output(p.ops.park.double(doubled), remote=True)
        array, tensor = p.result
        assert array.tolist() == (X * 2).tolist()
        assert (await tensor.numpy()).tolist() == (X * 4).tolist()

        @client.as_program
        def four(value):
            return client.ops.park.double(client.ops.park.double(value))

        @client.as_program(remote=True)
        def two(value):
            return client.call("park::double", value)

        assert (await four(x)).tolist() == (X * 4).tolist()
        assert (await (await two(x)).numpy()).tolist() == (X * 2).tolist()
        with pytest.raises(oc.OperatorNotFoundError, match="step 0 of the program"):
            async with client.program() as p:
                p.output(p.ops.park.nothing(x))
    assert await nothing_is_kept(session)


async def test_a_call_that_is_cancelled_keeps_nothing(daemon: RunningDaemon, session: oc.Session):
    async with oc.aio.connect(daemon.address) as client:
        for _ in range(20):
            call = asyncio.create_task(client.call("park::double", X, remote=True))
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            del call
        gc.collect()
        assert await nothing_is_kept(session)
        assert session.check_invariants() == []
