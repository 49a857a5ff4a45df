"""Transforms where kernels are: in interpreters, of tensors there; and of remote tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import (
    OpdispatchError,
    Tensor,
    TransformError,
    func,
    functionalize,
    inference_mode,
    no_grad,
    vmap,
)
from opdispatch import array_api as xp
from tests.service.running_daemon import RunningDaemon

SHARED_WORKERS = 1
LIBRARY = """\
from opdispatch import Library, func, is_grad_enabled, is_inference_mode_enabled
from opdispatch import no_grad, ops, register_vmap, vmap
from opdispatch import array_api as xp

lib = Library("samples", "DEF")
lib.define("gradients(Tensor weights, Tensor samples) -> Tensor")
lib.define("cube(Tensor x) -> Tensor")
lib.define("cubes(Tensor x) -> Tensor")
lib.define("branch(Tensor x) -> Tensor")
lib.define("modes(Tensor x) -> bool[]")
lib.define("leave_modes_open(Tensor x) -> Tensor")


def loss(weights, sample):
    return xp.sum(xp.tanh(weights @ sample) ** 2)


lib.impl("gradients", vmap(func.grad(loss), in_dims=(None, 0)), "CPU")
lib.impl("cube", lambda x: x * x * x, "CPU")
register_vmap("samples::cube", lambda info, in_dims, x: (ops.samples.cube(x), 0), lib=lib)
lib.impl("cubes", lambda x: vmap(ops.samples.cube)(x), "CPU")
lib.impl("modes", lambda x: [is_grad_enabled(), is_inference_mode_enabled()], "CPU")


def leave_modes_open(x):
    no_grad().__enter__()
    raise ValueError("on the way out")


lib.impl("leave_modes_open", leave_modes_open, "CPU")
lib.impl("branch", lambda x: vmap(lambda a: a if a[0] > 0 else -a)(x), "CPU")
"""

rng = np.random.default_rng(0)
WEIGHTS, SAMPLES = rng.normal(size=(2, 3)), rng.normal(size=(4, 3))


@pytest.fixture(scope="module")
def session(
    shared_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oc.Session]:
    path: Path = tmp_path_factory.mktemp("library") / "samples.py"
    path.write_text(LIBRARY)
    with shared_daemon.connect() as session:
        session.load(path)
        session.load("opdispatch.array_library")
        yield session
        session.unload("samples")
        session.unload("array_library")


def expected() -> np.ndarray:
    def loss(weights: Tensor, sample: Tensor) -> Tensor:
        return xp.sum(xp.tanh(weights @ sample) ** 2)

    return np.stack([np.asarray(func.grad(loss)(WEIGHTS, sample)) for sample in SAMPLES])


def test_a_kernel_may_transform_functions(session: oc.Session):
    got = session.ops.samples.gradients(WEIGHTS, SAMPLES)
    np.testing.assert_allclose(np.asarray(got), expected())
    np.testing.assert_allclose(np.asarray(session.ops.samples.cubes(SAMPLES)), SAMPLES**3)


def test_errors_of_remote_transforms_reach_the_caller(session: oc.Session):
    with pytest.raises(oc.KernelError, match="cannot read a number out of a batched tensor"):
        session.ops.samples.branch(SAMPLES)
    got = session.ops.samples.gradients(WEIGHTS, SAMPLES)  # and leave nothing behind there
    np.testing.assert_allclose(np.asarray(got), expected())


def test_remote_tensors(session: oc.Session):
    x = session.put(SAMPLES)
    got = vmap(lambda a: xp.sum(xp.exp(a) * a))(x)
    assert isinstance(got, oc.RemoteTensor)
    np.testing.assert_allclose(got.numpy(), (np.exp(SAMPLES) * SAMPLES).sum(1))
    got = vmap(lambda a, b: a[1:] @ b[:2], in_dims=(0, None))(x, session.put(SAMPLES[0]))
    np.testing.assert_allclose(got.numpy(), SAMPLES[:, 1:] @ SAMPLES[0, :2])
    with pytest.raises(TransformError, match=r"dense tensors of this process.*session\.grad"):
        func.grad(lambda a: xp.sum(a))(x)


def test_operators_of_a_session_take_no_tensors_of_a_transform(session: oc.Session):
    with pytest.raises(OpdispatchError, match="where the transform cannot follow it"):
        vmap(lambda a: session.ops.array.exp(a))(SAMPLES)


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("transform", [vmap, func.grad, functionalize])
def test_other_calls_of_a_session_in_a_transform(session: oc.Session, transform, remote: bool):
    y = session.put(SAMPLES) if remote else SAMPLES

    def function(x: Tensor) -> Tensor:
        return xp.sum(x) + xp.sum(Tensor(np.asarray(session.ops.samples.cube(y))))

    got = transform(function)(Tensor(WEIGHTS))
    want = transform(lambda x: xp.sum(x) + (SAMPLES**3).sum())(Tensor(WEIGHTS))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want))


def test_modes_left_open_by_a_kernel_end_with_its_call(session: oc.Session):
    x = session.put(WEIGHTS)
    with pytest.raises(OpdispatchError, match="on the way out"):
        session.call("samples::leave_modes_open", x)
    assert session.call("samples::modes", x) == [True, False]
    with no_grad():
        assert session.call("samples::modes", x) == [False, False]
    with inference_mode():
        assert session.call("samples::modes", x) == [False, True]


def test_calls_of_a_map_are_made_with_what_was_switched_on_for_it(session: oc.Session):
    arguments = [(WEIGHTS,)] * 5
    with no_grad():
        results = session.map("samples::modes", arguments, in_flight=2)
    assert list(results) == [[False, False]] * 5
    results = session.map("samples::modes", arguments, in_flight=2)
    with inference_mode():
        assert list(results) == [[True, False]] * 5

    async def of_a_task() -> list[list[bool]]:
        async with oc.aio.connect(session.address) as other:
            with no_grad():
                results = other.map("samples::modes", arguments, in_flight=2)
            return [result async for result in results]

    assert asyncio.run(of_a_task()) == [[False, False]] * 5
