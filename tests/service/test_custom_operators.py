"""Libraries of operators that are one function each, with ``custom_op``."""

from __future__ import annotations

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor
from tests.service.conftest import WriteLibrary

X = np.arange(3.0)


def custom(by: float) -> str:
    return f"""
from opdispatch import Tensor, custom_op


@custom_op("custom::scale", mutates_args=())
def scale(x: Tensor, by: float = {by}) -> Tensor:
    return x * by


scale.register_autograd(
    lambda ctx, grad: (grad * ctx.by, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
)


@custom_op("custom::twice", mutates_args=(), device_types="cpu")
def twice(x: Tensor) -> Tensor:
    return scale(scale(x))
"""


def test_they_are_loaded_replaced_rolled_back_and_unloaded(
    shared: oc.Session, write_library: WriteLibrary
):
    for by in (2.0, 3.0):
        shared.load(write_library("custom", custom(by)))
        for _ in range(2):
            np.testing.assert_array_equal(shared.ops.custom.scale(X), X * by)
            np.testing.assert_array_equal(shared.ops.custom.twice(X), X * by * by)
    shared.rollback("custom")
    np.testing.assert_array_equal(shared.ops.custom.twice(X), X * 4)
    shared.load("opdispatch.array_library")  # which has the backward pass
    x = shared.put(Tensor(X, requires_grad=True))
    result = shared.call("custom::scale", x, remote=True)
    (gradient,) = shared.grad(result, [x], np.ones(3))
    np.testing.assert_array_equal(gradient.numpy(), np.full(3, 2.0))
    with pytest.raises(oc.DuplicateDefinitionError, match="custom::scale is defined already"):
        shared.load(write_library("other", custom(5.0)))
    np.testing.assert_array_equal(shared.ops.custom.twice(X), X * 4)
    shared.unload("custom")
    with pytest.raises(oc.OperatorNotFoundError):
        shared.ops.custom.scale(X)


RULES = """\
from opdispatch import Library, TorchDispatchMode, get_kernel, ops


class Zeros(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def under_mode(x):
    with Zeros():
        return ops.ruled.f(x)


lib = Library("ruled", "DEF")
lib.register_torch_dispatch("f", Zeros, lambda mode, func, types, args, kwargs: args[0] * BY)
lib.define("f(Tensor x) -> Tensor")
lib.define("g(Tensor x) -> Tensor")
lib.impl("f", lambda x: x + 1, "CPU")
lib.register_torch_dispatch("g", Zeros, lambda *call: NotImplemented)
lib.impl("g", under_mode, "CPU")
first = get_kernel("ruled::f", "CPU")
lib.impl("f", lambda keys, x: first.call_boxed(keys, x) * 2, "CPU", with_keyset=True)
"""


def test_rules_of_modes_and_held_kernels_are_those_of_the_active_version(
    shared: oc.Session, write_library: WriteLibrary
):
    x = np.ones(2)
    for by in (3, 5):
        shared.load(write_library("ruled", RULES.replace("BY", str(by))))
        np.testing.assert_array_equal(shared.ops.ruled.g(x), x * by)
        np.testing.assert_array_equal(shared.ops.ruled.f(x), [4, 4])
    shared.rollback("ruled")
    np.testing.assert_array_equal(shared.ops.ruled.g(x), x * 3)
    np.testing.assert_array_equal(shared.ops.ruled.f(x), [4, 4])
    shared.unload("ruled")
    shared.load(write_library("ruled", RULES.replace("BY", "7")))
    np.testing.assert_array_equal(shared.ops.ruled.g(x), x * 7)
    assert shared.check_invariants() == []


MADE = """
import numpy as np

from opdispatch import Device, Tensor, array_api, custom_op, register_fake, register_kernel


@custom_op("made::filled", mutates_args=(), device_types="cpu")
def filled(n: int, device: Device) -> Tensor:
    return Tensor(np.full(n, 7.0))


@custom_op("made::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * 2


@custom_op("made::scaled.by", mutates_args=())
def scaled_by(x: Tensor, by: Tensor) -> Tensor:
    return x * by


register_kernel(scaled, "cpu", lambda x: x * 3)
register_fake(scaled, lambda x: array_api.empty_like(x))
"""


def test_factories_and_overloads_are_served(shared: oc.Session, write_library: WriteLibrary):
    shared.load(write_library("made", MADE))
    made = shared.ops.made
    np.testing.assert_array_equal(made.filled(3, "cpu"), np.full(3, 7.0))
    np.testing.assert_array_equal(made.filled(2, device="cpu"), np.full(2, 7.0))
    with pytest.raises(
        oc.NoKernelError, match="made::filled has no kernel for the device type 'cu"
    ):
        made.filled(3, "cuda")
    np.testing.assert_array_equal(made.scaled(X), X * 3)
    np.testing.assert_array_equal(made.scaled(X, X), X * X)
    shared.unload("made")
