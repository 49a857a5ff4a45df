"""Functions that programs of derivatives call: PyTorch's, and ours by the same names."""

from types import SimpleNamespace

import numpy as np
import pytest

import opdispatch
from opdispatch import ArgumentError, AutogradError, Tensor
from opdispatch import array_api as xp
from opdispatch.autograd import Function, backward, grad
from opdispatch.autograd.function import once_differentiable

torch = pytest.importorskip("torch")

OURS = SimpleNamespace(
    Function=Function,
    once=once_differentiable,
    backward=backward,
    grad=grad,
    no_grad=opdispatch.no_grad,
    enable_grad=opdispatch.enable_grad,
    tensor=lambda *numbers: Tensor(np.array(numbers, dtype="float64")),
    sum=xp.sum,
    exp=xp.exp,
    ops=opdispatch.ops,
    library=opdispatch,
    Library=opdispatch.Library,
    Tensor=Tensor,
    integers=lambda *numbers: Tensor(np.array(numbers)),
)
THEIRS = SimpleNamespace(
    Function=torch.autograd.Function,
    once=torch.autograd.function.once_differentiable,
    backward=torch.autograd.backward,
    grad=torch.autograd.grad,
    no_grad=torch.no_grad,
    enable_grad=torch.enable_grad,
    tensor=lambda *numbers: torch.tensor(numbers, dtype=torch.float64),
    sum=torch.sum,
    exp=torch.exp,
    ops=torch.ops,
    library=torch.library,
    Library=torch.library.Library,
    Tensor=torch.Tensor,
    integers=lambda *numbers: torch.tensor(numbers),
)


def leaf(side, *numbers):
    return side.tensor(*numbers).requires_grad_()


def plain(value):
    """Convert a value to a form that is compared between both sides."""
    if isinstance(value, Tensor | torch.Tensor):
        value = np.asarray(value.detach()).tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return round(value, 9) if isinstance(value, float) else value


def outcome(case, side):
    refusals = (AutogradError, ArgumentError) if side is OURS else (RuntimeError, TypeError)
    try:
        return "done", plain(case(side))
    except refusals as error:
        return "refused", str(error)
