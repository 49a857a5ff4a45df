"""Random numbers that are drawn elsewhere, and what a task has switched on for its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators of this process
import opdispatch_client as oc
from opdispatch import ArgumentError, Generator, Tensor, autocast, ops
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import WireError
from tests.service.running_daemon import RunningDaemon
from tests.service.test_bad_input import refusal

CASTING = """
from opdispatch import Library, get_autocast_dtype, ops

lib = Library("casting", "DEF")
lib.define("inner(Tensor x) -> Tensor")
lib.impl("inner", lambda x: x, "CPU")
lib.impl("inner", lambda x: x.array.astype(get_autocast_dtype("cpu")), "AutocastCPU")
lib.define("outer(Tensor x) -> Tensor")
lib.impl("outer", lambda x: ops.casting.inner(x), "CPU")
"""


@pytest.fixture(scope="module")
def service(
    shared_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oc.Session]:
    casting = tmp_path_factory.mktemp("libraries") / "casting.py"
    casting.write_text(CASTING)
    with shared_daemon.connect() as session:
        session.load("opdispatch.random_library", interpreters=2)
        session.load(casting)
        yield session
        for name in ("random_library", "casting"):
            session.unload(name)


def draw(call, generator: Generator) -> list[np.ndarray]:
    """A sequence of calls, each as ``call`` makes it."""
    x = np.zeros((2, 3))
    drawn = [
        call("random::rand", [3], generator=generator),
        call("random::randn", [2, 2], dtype=np.float32, generator=generator),
        call("random::normal_", x, 1.0, 2.0, generator=generator),
        call("random::dropout", np.ones(5), generator=generator),
        call("random::randperm", 7, generator=generator),
    ]
    np.testing.assert_array_equal(drawn[2], x)
    return [np.asarray(each) for each in drawn]


def local_call(name: str, *args, **kwargs):
    return getattr(ops.random, name.removeprefix("random::"))(*args, **kwargs)


def test_a_sequence_of_calls_has_the_same_numbers_wherever_each_is_run(service: oc.Session):
    here, there, mixed = (Generator().manual_seed(11) for _ in range(3))
    expected = draw(local_call, here)
    turns = iter((local_call, service.call) * 3)
    for call, generator in (
        (service.call, there),
        (lambda *args, **kwargs: next(turns)(*args, **kwargs), mixed),
    ):
        for got, wanted in zip(draw(call, generator), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert generator.state == here.state


def test_an_asyncio_session_takes_a_generator_along_as_well(
    service: oc.Session, shared_daemon: RunningDaemon
):
    async def twice(generator: Generator) -> list[np.ndarray]:
        async with oc.aio.connect(shared_daemon.address) as session:
            return [await session.call("random::rand", [2], generator=generator) for _ in "ab"]

    here, there = Generator().manual_seed(4), Generator().manual_seed(4)
    got = asyncio.run(twice(there))
    np.testing.assert_array_equal(got, [ops.random.rand([2], generator=here) for _ in "ab"])


def test_a_generator_is_not_shared_by_calls_that_are_under_way(service: oc.Session):
    while True:  # until the first has not ended when the second has begun
        generator = Generator().manual_seed(1)
        calls = [service.submit("random::rand", [2], generator=generator) for _ in range(2)]
        if not calls[0].done():
            break
        calls[1].exception()
    [ended] = [call for call in calls if call.exception() is None]  # the one that was first to
    [other] = [call for call in calls if call is not ended]
    np.testing.assert_array_equal(
        ended.result(), ops.random.rand([2], generator=Generator().manual_seed(1))
    )
    with pytest.raises(ArgumentError, match="was used during a call in another process"):
        other.result()
    assert generator.get_offset() == 1


def test_a_failed_call_draws_nothing(service: oc.Session):
    generator = Generator().manual_seed(1)
    with pytest.raises(oc.KernelError, match="expected low < high"):
        service.call("random::randint", 0, [2], generator=generator)
    with pytest.raises(oc.KernelError, match="Expected a 'cpu' device type for generator"):
        service.call("random::rand", [2], generator=Generator("cuda"))
    assert generator.get_offset() == 0


def test_a_generator_is_an_argument_of_its_own(service: oc.Session):
    with pytest.raises(WireError, match=r"\$\.args\[0\]\[0\] is a generator inside another value"):
        service.call("random::rand", [Generator()])


def test_the_dtype_of_an_autocast_block_travels(service: oc.Session):
    x = Tensor(np.ones(2, np.float32))

    def dtype_of(operator: str) -> str:
        return service.call(operator, x).dtype.name

    assert dtype_of("casting::inner") == "float32"
    with autocast("cpu", np.float16):
        # The outer one's kernel calls the inner one, in the same interpreter.
        assert dtype_of("casting::inner") == dtype_of("casting::outer") == "float16"
        with autocast("cpu", enabled=False):
            assert dtype_of("casting::inner") == "float32"
        with service.program() as p:
            p.output(p.call("casting::inner", x))
        assert p.result.dtype.name == "float16"
    with autocast("cpu"):
        assert dtype_of("casting::inner") == "bfloat16"
    assert dtype_of("casting::inner") == "float32"


@pytest.fixture
def door(service: oc.Session, shared_daemon: RunningDaemon) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(shared_daemon.address.replace("unix://", "unix:")) as channel:
        yield channel


def test_a_mode_that_is_not_known_is_refused_by_name(service: oc.Session, door: grpc.Channel):
    request = call_request("casting::inner", [np.ones(1)], {})
    request.modes.add(name="vmap", settings={"randomness": "different"})
    code, reason, message = refusal(door, request)
    assert (code, reason) == (grpc.StatusCode.UNIMPLEMENTED, "UNKNOWN_MODE")
    assert message.startswith("the call asks for the mode 'vmap', which is not known here")


def test_malformed_autocast_settings_are_refused(service: oc.Session, door: grpc.Channel):
    for settings, words in (({"toaster": "float16"}, "toaster"), ({"cpu": "float13"}, "float13")):
        request = call_request("casting::inner", [np.ones(1)], {})
        request.modes.add(name="autocast", settings=settings)
        code, reason, message = refusal(door, request)
        assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "WIRE")
        assert words in message


def test_a_generator_that_cannot_be_is_refused(service: oc.Session, door: grpc.Channel):
    for change, words in (
        ({"device": "toaster"}, r"$.kwargs['generator'].device is 'toaster'"),
        ({"device": ""}, r"$.kwargs['generator'].device is ''"),
        ({"dispatch_keys": 1 << 63}, "not yet supported with named tensors"),
    ):
        request = call_request("random::rand", [[2]], {"generator": Generator()})
        for field, value in change.items():
            setattr(request.kwargs["generator"].generator, field, value)
        code, _, message = refusal(door, request)
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)
        assert words in message
    request.kwargs["generator"].Clear()
    request.kwargs["generator"].list.items.add().generator.device = "cpu"
    assert "expected it as an argument of a call" in refusal(door, request)[2]
