"""Remote tensors: put, called with, fetched; shapes, views, writes, limits, strangers."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

import opdispatch as od
import opdispatch_client as oc
from opdispatch import array_api
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, values_pb2
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.remote import MATH, kept, nothing_is_kept, stores
from tests.service.running_daemon import Background, RunningDaemon, wait_for


@pytest.fixture(scope="module")
def math(shared_daemon: RunningDaemon) -> RunningDaemon:
    """The shared daemon with the library `calc` in its first interpreter."""
    path = shared_daemon.folder / "calc.py"
    path.write_text(MATH)
    with shared_daemon.connect() as session:
        session.load(path, on="worker-1")
    return shared_daemon


@pytest.fixture(params=["local", "stream", "grpc"])
def lane(request: pytest.FixtureRequest) -> str:
    """Every lane carries the same messages."""
    return str(request.param)


@pytest.fixture
def session(math: RunningDaemon) -> Iterator[oc.Session]:
    """A session; after the test nothing is kept any more."""
    with math.connect() as session:
        yield session
    with math.connect() as other:
        assert nothing_is_kept(other)
        assert stores(other, "worker-1", 0)


def test_a_tensor_is_put_called_with_and_fetched(math: RunningDaemon, lane: str):
    with math.connect(lane=lane) as session:
        x = session.put(np.arange(6.0).reshape(2, 3))
        assert isinstance(x, oc.RemoteTensor)
        y = session.call("math::add", x, x, remote=True)
        assert isinstance(y, oc.RemoteTensor)
        assert (y.shape, y.dtype, y.device, y.ndim, y.size, y.nbytes, len(y)) == (
            *((2, 3), np.dtype(float), "cpu", 2, 6, 48, 2),
        )
        assert y.interpreter == "worker-1"
        np.testing.assert_array_equal(y.numpy(), np.arange(6.0).reshape(2, 3) * 2)
        np.testing.assert_array_equal(session.call("math::add", y, 1.0 * np.ones(3)), y.numpy() + 1)
        assert kept(session) == {"worker-1": (2, 96)}
        assert session.check_invariants() == []


def test_remote_tensor_converts_for_numpy_and_dlpack(session: oc.Session):
    x = session.put(np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(np.asarray(x), [0, 1, 2, 3])
    assert np.asarray(x, dtype=float).dtype == float
    np.testing.assert_array_equal(np.from_dlpack(x), [0, 1, 2, 3])
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(ValueError, match="in another process: copy them"):
        np.asarray(x, copy=False)
    for take in (np.from_dlpack, array_api.from_dlpack):
        np.testing.assert_array_equal(take(x, copy=True), [0, 1, 2, 3])
        with pytest.raises(BufferError, match="in another process: copy them"):
            take(x, copy=False)
    fetched = x.numpy()
    fetched[:] = 9
    assert x.numpy().tolist() == [0, 1, 2, 3], "what is fetched is the caller's own"


def test_repr_shows_dtype_shape_and_interpreter(session: oc.Session):
    x = session.put(np.zeros((2, 3), np.float32), on="worker-2")
    assert repr(x) == "<RemoteTensor float32 [2, 3] in worker-2>"
    x.close()
    assert x.is_closed
    assert repr(x) == "<RemoteTensor float32 [2, 3] in worker-2 closed>"


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.float32(2.5),
        np.zeros((0, 3), np.int8),
        np.arange(12, dtype=np.complex64).reshape(3, 4).T,
        np.arange(20)[::2],
        np.array([True, False]),
        np.arange(3).astype(ml_dtypes.bfloat16),
        np.arange(3, dtype=">i4"),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_any_sendable_array_can_be_put(session: oc.Session, array: np.ndarray):
    x = session.put(array)
    assert x.shape == array.shape
    np.testing.assert_array_equal(x.numpy(), array)
    assert x.nbytes == array.nbytes


def test_a_tensor_with_keys_keeps_them(session: oc.Session):
    keys = od.DispatchKeySet(od.DispatchKey.SparseCPU)
    x = session.put(od.Tensor(np.ones(2), keys=keys))
    with pytest.raises(oc.NoKernelError, match="SparseCPU"):
        session.call("math::same", x)


def test_results_that_are_no_tensors_come_as_they_are(session: oc.Session):
    x = session.put(np.arange(4.0))
    doubled, size = session.call("math::two", x, remote=True)
    assert size == 4
    assert doubled.numpy().tolist() == [0, 2, 4, 6]
    rows = session.call("math::rows", session.put(np.eye(2)), remote=True)
    assert [row.numpy().tolist() for row in rows] == [[1, 0], [0, 1]]
    assert session.call("math::total", rows).tolist() == [1, 1]


def test_operator_writes_to_remote_tensor_in_place(session: oc.Session):
    x = session.put(np.zeros(2))
    view = session.call("math::same", x, remote=True)
    assert session.ops.math.iadd_(x, np.ones(2)) is x
    assert session.call("math::iadd_", x, x, remote=True) is x
    assert x.numpy().tolist() == [2, 2]
    assert view.numpy().tolist() == [0, 0], "a result is no second name of an argument"
    both = [session.put(np.zeros(2)), session.put(np.zeros(1))]
    assert session.ops.math.fill_(both, 7.0) is None
    assert [each.numpy().tolist() for each in both] == [[7, 7], [7]]
    assert not session.ops.math.writable(x), "one that is not written to cannot be"
    mixed = np.zeros(2)
    session.ops.math.fill_([mixed, x], 3.0)
    assert (mixed.tolist(), x.numpy().tolist()) == ([3, 3], [3, 3])


def test_results_of_many_calls_in_flight_stay_where_they_are(math: RunningDaemon, lane: str):
    with math.connect(lane=lane) as session:
        x = session.put(np.arange(4.0))
        futures = [session.submit("math::add", x, np.float64(n), remote=True) for n in range(5)]
        with session.map("math::add", ((x, np.float64(n)) for n in range(5)), remote=True) as them:
            for n, (future, mapped) in enumerate(zip(futures, them, strict=True)):
                for result in (future.result(), mapped):
                    assert isinstance(result, oc.RemoteTensor)
                    np.testing.assert_array_equal(result.numpy(), np.arange(4.0) + n)
        with pytest.raises(oc.KernelError):
            session.submit("math::boom", x, remote=True).result()
        with pytest.raises(oc.WireError):
            session.submit("math::add", x, object(), remote=True).result()
        del futures, future, mapped, result
        assert wait_for(lambda: kept(session) == {"worker-1": (1, 32)})


async def test_asyncio_map_gives_remote_tensors(math: RunningDaemon):
    async with oc.aio.connect(math.address) as session:
        x = await session.put(np.arange(4.0))
        calls = ((x, np.float64(n)) for n in range(5))
        results = [each async for each in session.map("math::add", calls, remote=True)]
        for n, result in enumerate(results):
            assert isinstance(result, oc.AsyncRemoteTensor)
            np.testing.assert_array_equal(await result.numpy(), np.arange(4.0) + n)


def test_values_of_a_cancelled_future_are_released(session: oc.Session, tmp_path):
    future = session.submit("math::hold", np.zeros(2), str(tmp_path), remote=True)
    assert wait_for((tmp_path / "entered").exists)
    assert future.cancel()
    (tmp_path / "open").touch()
    assert nothing_is_kept(session)


def test_a_call_uses_the_value_itself(session: oc.Session):
    x = session.put(np.zeros(1 << 16))
    addresses = {session.ops.math.address(x) for _ in range(3)}
    assert len(addresses) == 1


def test_options_and_arguments_named_remote(session: oc.Session):
    x = session.put(np.zeros(2))
    remote = session.with_options(remote=True)
    assert isinstance(remote.ops.math.same(x), oc.RemoteTensor)
    assert isinstance(remote.call("math::same", np.zeros(2)), oc.RemoteTensor)
    assert session.ops.math.remote(x, remote=True) is True
    assert session.with_options(retry=False).ops.math.remote(x, remote=False) is False


def test_a_value_is_freed_when_it_is_collected_closed_or_its_session_ends(math: RunningDaemon):
    with math.connect() as watch, math.connect() as session:
        kept_by_hand = [session.put(np.zeros(10)) for _ in range(5)]
        with session.put(np.zeros(3)) as x:
            assert kept(watch) == {"worker-1": (6, 424)}
        assert wait_for(lambda: kept(watch) == {"worker-1": (5, 400)})
        x.close()
        kept_by_hand[0].close()
        del kept_by_hand[1:3]
        gc.collect()
        assert wait_for(lambda: kept(watch) == {"worker-1": (2, 160)})
        session.close()
        assert nothing_is_kept(watch)
        with pytest.raises(oc.RemoteValueGoneError, match="the session is closed"):
            watch.call("math::same", kept_by_hand[1])


def test_a_loop_that_replaces_its_value_keeps_only_the_last_ones(session: oc.Session):
    x = session.put(np.zeros(100))
    one = session.put(np.ones(100))
    for _ in range(300):
        x = session.call("math::add", x, one, remote=True)
    assert x.numpy()[0] == 300
    assert wait_for(lambda: kept(session) == {"worker-1": (2, 1600)})


def test_a_value_that_is_gone_is_named_and_why(session: oc.Session):
    x = session.put(np.zeros(2))
    x.close()
    with pytest.raises(oc.RemoteValueGoneError, match="was closed") as caught:
        session.call("math::add", np.zeros(2), x)
    assert caught.value.facts["value"] == x.id
    assert caught.value.facts["interpreter"] == "worker-1"
    assert isinstance(caught.value, LookupError)


def test_another_sessions_value_cannot_be_had_by_its_id(math: RunningDaemon, session: oc.Session):
    """Refuse a stranger's references to the value: he does not know the session's name."""
    import grpc

    x = session.put(np.arange(4.0))
    target = math.address.replace("unix://", "unix:")
    with grpc.insecure_channel(target) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        for stranger in (b"", bytes(16), b"x" * 16):
            request = execution_pb2.CallRequest(operator="math::same")
            remote = request.args.add().remote
            remote.id, remote.session = bytes.fromhex(x.id), stranger
            remote.dtype, remote.interpreter = "float64", "worker-1"
            remote.shape.append(4)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Call(request)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            assert "there is no remote tensor" in caught.value.details()
    assert x.numpy().tolist() == [0, 1, 2, 3]


def test_client_requests_with_internal_fields_are_refused(math: RunningDaemon, session: oc.Session):
    import grpc

    x = session.put(np.arange(4.0))
    value = values_pb2.Value()
    x.__opdispatch_fill_value__(value, "$")
    adopt = execution_pb2.CallRequest(adopt=True, args=[value])
    adopt.args[0].remote.source.address = "unix:/somewhere"
    short = execution_pb2.CallRequest(operator="math::same", args=[value])
    short.keep.session = b"short"
    unknown = execution_pb2.CallRequest(operator="math::same", args=[value])
    unknown.keep.session, unknown.keep.prefix = bytes(16), bytes(12)
    reference = execution_pb2.CallRequest(operator="math::same")
    reference.args.add().reference.input = 0
    target = math.address.replace("unix://", "unix:")
    with grpc.insecure_channel(target) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        for request, problem in (
            (adopt, "only be set by the daemon"),
            (short, "$.keep.session has 5 bytes; expected 16"),
            (unknown, "this daemon knows of no such session"),
            (reference, "expected one only in a program's steps"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                stub.Call(request)
            assert problem in caught.value.details()


def test_limits_are_named(start_daemon: StartDaemon, write_library: WriteLibrary):
    daemon = start_daemon("--remote-values", "3", "--remote-bytes", "1000", workers=1)
    with daemon.connect() as session, daemon.connect() as other:
        session.load(write_library("calc", MATH))
        values = [session.put(np.zeros(10)) for _ in range(3)]
        with pytest.raises(oc.RemoteLimitError, match="has 3 remote values, and may have 3"):
            session.put(np.zeros(1))
        with pytest.raises(oc.RemoteLimitError):
            session.call("math::same", values[0], remote=True)
        assert session.call("math::same", values[0]).tolist() == [0] * 10
        values.pop().close()
        assert wait_for(lambda: kept(session) == {"worker-1": (2, 160)})
        with pytest.raises(oc.RemoteLimitError, match=r"has 160 bytes .* may have 1000") as caught:
            session.put(np.zeros(106))
        assert "--remote-bytes" in caught.value.hint
        # What turns out to be too much is not left behind.
        with pytest.raises(oc.RemoteLimitError):
            session.call("math::rows", np.zeros((2, 1)), remote=True)
        assert kept(session) == {"worker-1": (2, 160)}
        assert other.put(np.zeros(100)).nbytes == 800, "each session has limits of its own"
        assert session.check_invariants() == []


def test_result_of_an_abandoned_call_is_not_kept(
    math: RunningDaemon, tmp_path, session: oc.Session
):
    with math.connect(timeout=0.5) as hasty:
        x = hasty.put(np.zeros(3))
        with pytest.raises(oc.DeadlineExceededError):
            hasty.call("math::hold", x, str(tmp_path), remote=True)
        x.close()
        (tmp_path / "open").touch()
        assert nothing_is_kept(session)
        # Its kernel has ended: it has had its time to keep something.
        assert wait_for(lambda: all(not each.calls_in_flight for each in session.interpreters()))
        assert nothing_is_kept(session)


def test_a_value_in_use_stays_until_the_call_ends(session: oc.Session, tmp_path):
    x = session.put(np.arange(3.0))
    with Background(session.call, "math::hold", x, str(tmp_path)) as call:
        assert wait_for((tmp_path / "entered").exists)
        x.close()
        (tmp_path / "open").touch()
        assert call.result().tolist() == [1, 2, 3]
    assert nothing_is_kept(session)


def test_remote_tensor_cannot_be_copied_or_pickled(session: oc.Session):
    x = session.put(np.arange(3.0))
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"neither pickled nor copied"):
            duplicate(x)
    y = session.put(x)
    x.close()
    assert y.numpy().tolist() == [0, 1, 2]


def test_the_errors_of_calls_leave_nothing(session: oc.Session):
    x = session.put(np.zeros(2))
    with pytest.raises(oc.KernelError, match="no picture"):
        session.call("math::boom", x, remote=True)
    with pytest.raises(oc.ArgumentError):
        session.call("math::add", x, remote=True)
    with pytest.raises(
        oc.InterpreterNotFoundError, match="there is no interpreter named 'missing'"
    ):
        session.put(np.zeros(2), on="missing")
    with pytest.raises(oc.WireError, match="is not an array"):
        session.put([1, 2])  # type: ignore[arg-type]
    assert kept(session) == {"worker-1": (1, 16)}


MASKED = """
import numpy as np
from opdispatch import Library

lib = Library("masked", "DEF")
lib.define("one(Tensor x) -> Tensor")
lib.impl("one", lambda x: np.ma.masked_less(x, 1), "CPU")
lib.define("some(Tensor x) -> Tensor[]")
lib.impl("some", lambda x: [x + 1, np.ma.masked_less(x, 1)], "CPU")
"""


@pytest.mark.parametrize("remote", [False, True])
def test_masked_result_cannot_be_kept(
    session: oc.Session, write_library: WriteLibrary, remote: bool
):
    session.load(write_library("masked", MASKED))
    x = np.arange(3.0)
    for operator, place in (("one", r"\[0\]"), ("some", r"\[0\]\[1\]")):
        with pytest.raises(
            oc.ReturnError, match=rf"\$\.returns{place} is a masked array, which would lose"
        ):
            session.call(f"masked::{operator}", x, remote=remote)
    with (
        pytest.raises(oc.ReturnError, match=r"\$\.returns\[0\] is a masked array"),
        session.program() as p,
    ):
        p.output(p.ops.masked.one(x))
    session.unload("masked")
