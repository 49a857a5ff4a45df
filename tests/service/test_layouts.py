"""Sparse, quantized and nested tensors through a real daemon, on every lane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import NestedArray, QuantizedArray, Tensor
from opdispatch.arrays import find_layout
from opdispatch_wire.calls import call_request
from opdispatch_wire.tensors import tensor_to_proto
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc
from tests.service.conftest import WriteLibrary
from tests.service.layouts import KEYS, LARGE, LIBRARY, OTHER, SMALL, X, same
from tests.service.remote import kept, nothing_is_kept
from tests.service.running_daemon import RunningDaemon
from tests.service.test_shared_memory import is_shared

LANES = ["local", "stream", "grpc"]
each_layout = pytest.mark.parametrize("name", KEYS)


@pytest.fixture(scope="module")
def lay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon on a unix socket and on TCP, with the libraries in two interpreters."""
    folder = tmp_path_factory.mktemp("lay")
    daemon = RunningDaemon(folder, listen=[f"unix://{folder}/daemon.sock", "127.0.0.1:0"])
    try:
        daemon.wait_until_ready()
        (folder / "lay.py").write_text(LIBRARY)
        (folder / "far.py").write_text(OTHER)
        with daemon.connect() as session:
            session.load(folder / "lay.py", on="worker-1")
            session.load(folder / "far.py", on="worker-2")
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture(params=["local", "direct=False", "stream", "stream to TCP", "grpc"])
def session(lay: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[oc.Session]:
    """Every way that calls can take."""
    match request.param:
        case "direct=False":
            connected = oc.connect(lay.address, direct=False)
        case "stream to TCP":
            connected = oc.connect(lay.addresses[1], lane="stream")
        case lane:
            connected = oc.connect(lay.address, lane=lane)
    with connected as session:
        yield session


@each_layout
@pytest.mark.parametrize("arrays", [SMALL, LARGE], ids=["small", "large"])
def test_layout_round_trips_on_every_lane(session: oc.Session, name: str, arrays: dict[str, Any]):
    for _ in range(4):  # through the daemon, as a call that it knows, directly, in shared memory
        assert session.ops.lay.which(arrays[name]) == KEYS[name]
        same(session.ops.lay.same(arrays[name]), arrays[name])
    array, [first, dense] = session.ops.lay.both(arrays[name], [arrays[name], X])
    same(array, arrays[name])
    same(first, arrays[name])
    np.testing.assert_array_equal(dense, X)


@each_layout
def test_layout_is_an_array_or_a_tensor_on_both_sides(session: oc.Session, name: str):
    kind = {"quantized": "QuantizedArray", "nested": "NestedArray"}.get(name, name[-3:] + "_array")
    for _ in range(2):
        assert session.ops.lay.kinds(SMALL[name]) == f"{kind} "
        requires_grad = name != "quantized"
        tensor = Tensor(SMALL[name], requires_grad=requires_grad)
        assert session.ops.lay.kinds(tensor) == f"Tensor {requires_grad}"
        back = session.ops.lay.same(tensor)
        assert isinstance(back, Tensor)
        assert back.key_bits == tensor.key_bits
        assert back.requires_grad is requires_grad
        same(back, tensor)


def test_calls_are_distinguished_by_the_layouts_of_their_arguments(session: oc.Session):
    for _ in range(3):
        assert session.ops.lay.which(X) == "CPU"
        for name, key in KEYS.items():
            assert session.ops.lay.which(SMALL[name]) == key
            assert session.ops.lay.which(Tensor(SMALL[name])) == key


def test_kernels_calculate_with_what_arrives(session: oc.Session):
    for arrays in (SMALL, LARGE):
        for name in ("sparse_coo", "sparse_csr"):
            doubled = session.ops.lay.double(arrays[name])
            np.testing.assert_array_equal(doubled.toarray(), arrays[name].toarray() * 2)
            doubled.data[0] = 1  # it is the caller's own
        doubled = session.ops.lay.double(arrays["quantized"])
        assert isinstance(doubled, QuantizedArray)
        assert doubled.scale == 1
        doubled = session.ops.lay.double(arrays["nested"])
        assert isinstance(doubled, NestedArray)
        np.testing.assert_array_equal(doubled.values, arrays["nested"].values * 2)
        dense = arrays["sparse_coo"].toarray()
        np.testing.assert_array_equal(session.ops.lay.dense(arrays["sparse_coo"]), dense)
    eye = session.ops.lay.eye(3)
    assert (eye.layout, eye.requires_grad, str(eye.key_set)) == (
        "sparse_coo",
        True,
        "DispatchKeySet(SparseCPU, ADInplaceOrView, AutogradCPU, AutocastCPU)",
    )


def test_an_operator_without_a_kernel_for_the_layout_says_which_keys_it_has(session: oc.Session):
    for _ in range(2):
        with pytest.raises(oc.NoKernelError, match="from the SparseCsrCPU backend") as caught:
            session.ops.lay.dense(SMALL["sparse_csr"])
        assert "CPU, SparseCPU" in str(caught.value)


def test_large_parts_of_direct_calls_lie_in_shared_memory(lay: RunningDaemon):
    with oc.connect(lay.address) as session:
        for name in KEYS:
            for _ in range(3):
                result = session.ops.lay.same(LARGE[name])
            layout = find_layout(type(result))
            assert layout is not None
            assert is_shared(layout.elements(result))
            # Which the interpreter could still write to, and so they were copied out of it.
            parts = zip(layout.part_names, layout.parts(result), strict=True)
            assert not any(is_shared(part) for each, part in parts if each in layout.index_parts)


@each_layout
def test_an_operator_that_writes_to_it_is_refused(session: oc.Session, name: str):
    dense = X.copy()
    assert session.ops.lay.zero_(dense) is dense
    for _ in range(2):
        with pytest.raises(oc.WireError, match=rf"\$\.args\[0\] is a {name} tensor, .* writes"):
            session.ops.lay.zero_(SMALL[name])


@each_layout
def test_kernels_call_operators_of_other_interpreters_with_it(session: oc.Session, name: str):
    four_times = session.ops.far.twice(LARGE[name])
    same(four_times, session.ops.lay.double(session.ops.lay.double(LARGE[name])))


def test_a_vector_by_rows_goes_back_and_forth(session: oc.Session):
    vector = session.ops.lay.vector(X[1])
    assert vector.shape == (3,)
    np.testing.assert_array_equal(session.ops.lay.double(vector).toarray(), X[1] * 2)


def test_a_result_that_cannot_be_sent_names_the_operator(session: oc.Session):
    for remote in (False, True):
        with pytest.raises(
            oc.ReturnError, match=r"lay::wrong produced .*has shape \[3\]; expected"
        ):
            session.call("lay::wrong", X, remote=remote)


def test_a_result_with_an_index_that_is_out_of_range_is_not_kept(lay: RunningDaemon):
    with lay.connect() as session:
        for by_rows, part in ((True, "col_indices"), (False, r"indices\[0\]")):
            error = rf"\$\.returns\[0\] is not a valid sparse_\w+ tensor: {part} has index 50"
            for remote in (False, True):
                with pytest.raises(oc.ReturnError, match=error):
                    session.call("lay::stray", X, by_rows, remote=remote)
        assert nothing_is_kept(session)


# -- values that stay -----------------------------------------------------------------------------


@each_layout
@pytest.mark.parametrize("lane", LANES)
def test_layout_can_be_put_kept_and_fetched(lay: RunningDaemon, name: str, lane: str):
    with oc.connect(lay.address, lane=lane) as session:
        requires_grad = name != "quantized"
        for array in (SMALL[name], Tensor(SMALL[name], requires_grad=requires_grad), LARGE[name]):
            x = session.put(array, on="worker-1")
            tensor = Tensor(array)
            assert (x.shape, x.dtype, x.device) == (tensor.shape, tensor.dtype, "cpu")
            assert x.layout == tensor.layout
            assert f", layout={name!r} in worker-1>" in repr(x)
            assert x.nbytes == find_layout(type(tensor.array)).nbytes(tensor.array)
            assert kept(session)["worker-1"] == (1, x.nbytes)
            same(x.numpy(), array)
            with pytest.raises(TypeError, match=f"a {name} tensor is not a dense array"):
                np.asarray(x)
            assert session.ops.lay.which(x) == KEYS[name]
            y = session.call("lay::same", x, remote=True)
            same(y.numpy(), array)
            assert y.layout == x.layout
            if isinstance(array, Tensor):
                assert session.ops.lay.kinds(y) == f"Tensor {requires_grad}"
            with pytest.raises(oc.WireError, match="and the operator writes to it"):
                session.ops.lay.zero_(x)
            del x, y
            assert nothing_is_kept(session)


@each_layout
def test_layout_moves_between_interpreters_and_into_programs(lay: RunningDaemon, name: str):
    with oc.connect(lay.address) as session:
        for arrays in (SMALL, LARGE):
            x = session.put(arrays[name], on="worker-2")
            y = session.call("lay::double", x, remote=True)  # which moves it to worker-1
            assert y.interpreter == "worker-1"
            assert kept(session).get("worker-2", (0, 0)) == (0, 0)
            same(x.numpy(), arrays[name])
            with session.program() as p:
                doubled = p.ops.lay.double(x)
                p.output(p.ops.lay.double(doubled))
                p.output(doubled, remote=True)
                p.output(p.ops.lay.which(arrays[name]))
            result, kept_there, key = p.result
            same(result, session.ops.lay.double(y))
            same(kept_there.numpy(), y.numpy())
            assert key == KEYS[name]


def test_kernel_cannot_write_to_lent_layout_parts(lay: RunningDaemon, write_library: WriteLibrary):
    text = (
        "from opdispatch import Library\n"
        "lib = Library('spoil', 'DEF')\n"
        "lib.define('values(Tensor x) -> str')\n"
        "def values(x):\n"
        "    try:\n"
        "        x.data[0] = 7\n"
        "    except ValueError as error:\n"
        "        return str(error)\n"
        "    return 'written'\n"
        "lib.impl('values', values, 'SparseCPU')\n"
    )
    with oc.connect(lay.address) as session:
        session.load(write_library("spoil", text), on="worker-1")
        x = session.put(SMALL["sparse_coo"], on="worker-1")
        for _ in range(3):
            assert "read-only" in session.ops.spoil.values(x)
            assert "read-only" in session.ops.spoil.values(LARGE["sparse_coo"])
        same(x.numpy(), SMALL["sparse_coo"])
        session.unload("spoil")


async def test_an_asyncio_session_takes_and_gives_it(lay: RunningDaemon):
    async with oc.aio.connect(lay.address) as session:
        results = await asyncio.gather(
            *(session.ops.lay.same(arrays[name]) for name in KEYS for arrays in (SMALL, LARGE))
        )
        for result, array in zip(
            results, [arrays[name] for name in KEYS for arrays in (SMALL, LARGE)], strict=True
        ):
            same(result, array)
        x = await session.put(SMALL["nested"])
        same(await x.numpy(), SMALL["nested"])
        assert x.size is None


def test_a_limit_on_kept_bytes_counts_all_parts(
    start_daemon: Callable[..., RunningDaemon], write_library: WriteLibrary
):
    daemon = start_daemon("--remote-bytes", "1000", workers=1)
    with daemon.connect() as session:
        with pytest.raises(oc.RemoteLimitError):
            session.put(LARGE["sparse_csr"])
        session.put(SMALL["sparse_csr"])


# -- strangers ------------------------------------------------------------------------------------


def decreasing(request: execution_pb2.CallRequest) -> None:
    offsets = request.args[0].nested.offsets
    offsets.CopyFrom(tensor_to_proto(np.array([0, 3, 2, 3])))


def out_of_range(request: execution_pb2.CallRequest) -> None:
    request.args[0].sparse_coo.shape[:] = [1, 3]


def column_out_of_range(request: execution_pb2.CallRequest) -> None:
    request.args[0].sparse_csr.shape[:] = [2, 2]


def nan_scale(request: execution_pb2.CallRequest) -> None:
    request.args[0].quantized.scale = float("nan")


def unfit(request: execution_pb2.CallRequest) -> None:
    request.args[0].sparse_coo.values.CopyFrom(tensor_to_proto(np.ones(9)))


def missing(request: execution_pb2.CallRequest) -> None:
    request.args[0].sparse_csr.ClearField("values")


def of_an_unknown_layout(request: execution_pb2.CallRequest) -> None:
    # A field of Value that is none yet, as a newer peer might send it.
    request.args[0].ParseFromString(b"\x82\x05\x02\x08\x01")


@pytest.mark.parametrize(
    ("name", "spoil", "error"),
    [
        ("nested", decreasing, "$.args[0].offsets decreases from 3 to 2 at index 2"),
        (
            "sparse_coo",
            out_of_range,
            "$.args[0].indices[0] has index 1, out of range for an extent of 1",
        ),
        ("sparse_csr", column_out_of_range, "$.args[0].col_indices has index 2"),
        ("quantized", nan_scale, "$.args[0].scale is nan"),
        ("sparse_coo", unfit, "$.args[0].indices has shape [2, 3]; expected [2, 9]"),
        ("sparse_csr", missing, "$.args[0].values.dtype"),
        ("sparse_coo", of_an_unknown_layout, "$.args[0] is empty"),
    ],
)
def test_inconsistent_layout_is_refused_before_the_kernel(
    lay: RunningDaemon, name: str, spoil: Callable, error: str
):
    with grpc.insecure_channel(lay.address) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        good = call_request("lay::which", (SMALL[name],), {})
        bad = execution_pb2.CallRequest()
        bad.CopyFrom(good)
        spoil(bad)
        for _ in range(2):  # before and after the daemon knows such calls
            with pytest.raises(grpc.RpcError) as caught:
                stub.Call(bad)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error in caught.value.details()
            assert stub.Call(good).returns[0].text == KEYS[name]


def test_the_command_line_shows_the_parts(lay: RunningDaemon, tmp_path: Path):
    from opdispatch_client.cli.results import describe_returns, list_arrays, value_to_json

    with oc.connect(lay.address) as session:
        eye = session.ops.lay.eye(2)
    assert describe_returns([("out", eye)]) == [
        "sparse_coo [2, 2]",
        "indices: int32 [2, 2]",
        "[[0, 1],",
        " [0, 1]]",
        "values: float64 [2]",
        "[1., 1.]",
    ]
    assert value_to_json(SMALL["quantized"])["scale"] == 0.5
    assert value_to_json(eye)["values"]["data"] == [1, 1]
    arrays = list_arrays([("out", eye), ("q", SMALL["quantized"]), ("n", SMALL["nested"])])
    assert list(arrays) == [
        *("out_indices", "out_values", "out_shape"),
        *("q_int_repr", "q_scale", "q_zero_point"),
        *("n_values", "n_offsets"),
    ]
    assert arrays["out_shape"].tolist() == [2, 2]
    assert arrays["q_scale"] == 0.5
