"""Tensors that inference mode makes: outside of it they have no version and no part in a graph."""

import copy

import numpy as np
import pytest

from opdispatch import (
    AutogradError,
    DispatchKey,
    Tensor,
    capture_dispatch_trace,
    inference_mode,
    nested_tensor,
    quantize_per_tensor,
    sparse_coo_tensor,
    vmap,
)
from opdispatch import array_api as xp
from tests.unit.leaf_tensors import leaf


def made():
    with inference_mode():
        return xp.asarray([1.0, 2.0]) * 1


def test_operators_in_inference_mode_make_inference_tensors():
    x = leaf(1.0, 2.0)
    with inference_mode():
        y = xp.ones(2)
        assert [each.is_inference() for each in (x * 2, y, y[1:], *xp.unstack(y))] == [True] * 5
        assert [each.is_inference() for each in (x, x[1:])] == [False] * 2
        assert not vmap(xp.sum)(x[:, None])[0].requires_grad
        y += 1
    assert (y.is_inference(), y[1:].is_inference(), y.array.tolist()) == (True, True, [2.0, 2.0])
    assert (y.detach().is_inference(), (y * 1).is_inference()) == (True, False)
    assert not copy.deepcopy(y).is_inference()


def test_layout_functions_in_inference_mode_make_inference_tensors():
    x, s = xp.asarray([1.0, 2.0]), sparse_coo_tensor([[0, 0]], [1.0, 2.0])
    with inference_mode():
        made = [
            sparse_coo_tensor([[0]], [1.0]),
            quantize_per_tensor(x, 0.1, 0, "quint8"),
            quantize_per_tensor(x, 0.1, 0, "quint8").dequantize(),
            nested_tensor([x, x]),
            x.to("meta"),
            x.to_sparse(),
            s.to_dense(),
            s.coalesce(),
            Tensor._efficientzerotensor((2,)),
            xp.asarray([1j]).conj().resolve_conj(),
            copy.deepcopy(x),
        ]
        parts = [s.indices(), s.values(), *nested_tensor([x]).unbind()]
    assert [each.is_inference() for each in made] == [True] * len(made)
    assert [each.is_inference() for each in parts] == [False, False, True]
    assert made[0].values().is_inference()


def test_calls_with_them_alone_do_not_visit_autograd():
    x = made()
    assert not x.key_set.has(DispatchKey.AutogradCPU)
    with capture_dispatch_trace() as lines:
        xp.exp(x)
    assert [line.key for line in lines] == ["CPU"]


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.__setitem__(0, 5.0),
        lambda x: x[1:].__setitem__(0, 5.0),
        lambda x: leaf(1.0, 1.0) * x,
        lambda x: x._version,
    ],
)
def test_inference_tensor_refuses_uses_that_need_a_version(use):
    x = made()
    with pytest.raises(AutogradError, match=r"inference mode has no version.*make a copy"):
        use(x)
    assert x.array.tolist() == [1.0, 2.0]


def test_they_cannot_require_gradients_outside():
    with pytest.raises(AutogradError, match="cannot require gradients outside"):
        made().requires_grad_()
    with inference_mode():
        assert xp.ones(2).requires_grad_().requires_grad


def test_inference_tensor_may_be_an_argument_of_recorded_calls():
    x = leaf(1.0, 2.0)
    xp.sum(x + made()).backward()
    assert x.grad.array.tolist() == [1.0, 1.0]


def test_others_are_written_to_in_the_mode():
    x = Tensor(np.ones(2))
    with inference_mode():
        x[1:] = 5.0
    assert (x._version, x.is_inference(), x.array.tolist()) == (1, False, [1.0, 5.0])
