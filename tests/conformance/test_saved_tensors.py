"""Hooks for saved tensors and anomaly mode beside PyTorch's.

Each case is one program that both run: what it returns is compared, or that both refuse it.
"""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, autograd
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")

OURS = SimpleNamespace(
    autograd=autograd,
    tensor=lambda *numbers: Tensor(np.array(numbers, dtype="float64")),
    array=lambda tensor: np.array(tensor.detach()),
    of_array=Tensor,
    copy=lambda tensor: +tensor,
    is_anomaly_enabled=autograd.is_anomaly_enabled,
    is_anomaly_check_nan_enabled=autograd.is_anomaly_check_nan_enabled,
    **{name: getattr(xp, name) for name in ("sum", "exp", "sin", "sqrt")},
)
THEIRS = SimpleNamespace(
    autograd=torch.autograd,
    tensor=lambda *numbers: torch.tensor(numbers, dtype=torch.float64),
    array=lambda tensor: np.array(tensor.detach()),
    of_array=torch.from_numpy,
    copy=torch.clone,
    is_anomaly_enabled=torch.is_anomaly_enabled,
    is_anomaly_check_nan_enabled=torch.is_anomaly_check_nan_enabled,
    **{name: getattr(torch, name) for name in ("sum", "exp", "sin", "sqrt")},
)
CASES = {}
NAN = float("nan")


def case(program):
    """Add it to the cases."""
    CASES[program.__name__] = program
    return program


def leaf(side, *numbers):
    return side.tensor(*numbers).requires_grad_()


def hooks(side, log):
    """That keep copies, and note down what they saw."""

    def pack(tensor):
        array = side.array(tensor)
        log.append(("pack", sorted(array.tolist())))
        return array

    def unpack(array):
        log.append(("unpack", sorted(array.tolist())))
        return side.of_array(array)

    return side.autograd.graph.saved_tensors_hooks(pack, unpack)


@case
def what_is_packed_and_unpacked(side):
    log, x = [], leaf(side, 2, 3)
    with hooks(side, log):
        z = side.exp(side.sin(x) * x) + 1 + x * 2.0
    side.sum(z).backward(retain_graph=True)
    side.sum(z).backward()
    return sorted(log), x.grad


@case
def second_derivatives(side):
    log, x = [], leaf(side, 2, 3)
    with hooks(side, log):
        z = side.exp(x * x * 0.1)
    [first] = side.autograd.grad(side.sum(z), x, create_graph=True)
    return first, side.autograd.grad(side.sum(first), x)


@case
def second_derivatives_within(side):
    log, x = [], leaf(side, 2, 3)
    with hooks(side, log):
        z = side.exp(x * x * 0.1)
        [first] = side.autograd.grad(side.sum(z), x, create_graph=True)
    return first, side.autograd.grad(side.sum(first), x)


@case
def of_a_function(side):
    log, x, y = [], leaf(side, 2, 3), leaf(side, 4, 5)

    class Product(side.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            result = x * y
            ctx.save_for_backward(x, y, None, result)
            return result

        @staticmethod
        def backward(ctx, grad):
            x, y, _, result = ctx.saved_tensors
            log.append(("has a history", result.grad_fn is not None))
            return grad * y, grad * x

    with hooks(side, log):
        z = Product.apply(x, y)
    side.sum(z * z).backward()
    return log, x.grad, y.grad


@case
def writes(side):
    log, x = [], leaf(side, 2, 3, 4)
    y = x * 1
    with hooks(side, log):
        z = y * y
        y[1:] = z[1:] * x[1:]
    y[0] = 7.0
    side.sum(y + z).backward()
    return sorted(log), x.grad


@case
def the_innermost_block(side):
    one, other, x = [], [], leaf(side, 2, 3)
    with hooks(side, one):
        with hooks(side, other):
            y = side.exp(x)
        z = side.sin(x)
    side.sum(y + z).backward()
    return one, other


def unpacking(what):
    def program(side):
        x = leaf(side, 2, 3)
        with side.autograd.graph.saved_tensors_hooks(lambda t: 1, lambda t: what(side)):
            y = side.sin(x)
        side.sum(y).backward()
        return x.grad

    return program


CASES |= {
    "unpacks None": unpacking(lambda side: None),
    "unpacks a number": unpacking(lambda side: 3),
    "unpacks an array": unpacking(lambda side: np.ones(2)),
    "unpacks another shape": unpacking(lambda side: side.tensor(1, 2, 3)),
    "unpacks another number": unpacking(lambda side: side.tensor(1, 2)),
}


@case
def packing_writes(side):
    def pack(tensor):
        tensor[...] = tensor * 2

    with side.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        side.sin(leaf(side, 1, 2) * 1)


@case
def packing_fails(side):
    with side.autograd.graph.saved_tensors_hooks(lambda t: [][0], lambda t: t):
        side.sin(leaf(side, 1, 2))


@case
def no_functions(side):
    with side.autograd.graph.saved_tensors_hooks(3, 4):
        pass


@case
def forbidden(side):
    with side.autograd.graph.disable_saved_tensors_hooks("not here"), hooks(side, []):
        pass


@case
def forbidden_within(side):
    with hooks(side, []), side.autograd.graph.disable_saved_tensors_hooks("not here"):
        pass


@case
def kept_on_the_host(side):
    x = leaf(side, 2, 3)
    with side.autograd.graph.save_on_cpu():
        z = side.exp(x * x * 0.1)
    side.sum(z).backward()
    return x.grad


@case
def versions(side):
    x, y = side.tensor(1, 2), side.tensor(1)
    side.autograd.graph.increment_version(x)
    side.autograd.graph.increment_version([x, y])
    return x._version, y._version


def anomaly(check_nan=True, factor=0.0, hook=None):
    """A square root whose gradient is infinite, times a factor."""

    def program(side):
        x = leaf(side, 0, 1)
        with side.autograd.detect_anomaly(check_nan=check_nan):
            y = side.sqrt(x)
            if hook is not None:
                y.register_hook(hook)
            side.sum(y * factor).backward()
        return x.grad

    return program


CASES |= {
    "NaN": anomaly(),
    "NaN that is none": anomaly(check_nan=False),
    "infinity": anomaly(factor=1.0),
    "NaN from a hook": anomaly(factor=1.0, hook=lambda grad: grad * NAN),
    "an error in a hook": anomaly(hook=lambda grad: [][0]),
}


@case
def nan_that_arrives_at_a_leaf(side):
    x = leaf(side, 0, 1)
    x.register_hook(lambda grad: grad * NAN)
    with side.autograd.detect_anomaly():
        side.sum(x * 1).backward()
    return x.grad


@case
def nan_that_is_given(side):
    x = leaf(side, 0, 1)
    with side.autograd.set_detect_anomaly(True):
        (x * 1).backward(side.tensor(NAN, 1))


@case
def nan_in_what_is_not_gone_to(side):
    x = leaf(side, 0, 1)
    y = x * 1
    with side.autograd.detect_anomaly():
        return side.autograd.grad(side.sum(side.sqrt(y) * y), y)


@case
def what_is_switched_on(side):
    seen = []

    def see():
        seen.append((side.is_anomaly_enabled(), side.is_anomaly_check_nan_enabled()))

    see()
    with side.autograd.detect_anomaly(check_nan=False):
        see()
        with side.autograd.set_detect_anomaly(False):
            see()
        see()
    with side.autograd.set_detect_anomaly(True):
        see()
    see()
    return seen


def plain(value):
    """Convert a value to a form that is compared between both sides."""
    if isinstance(value, Tensor | torch.Tensor):
        value = np.asarray(value.detach()).tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return f"{value:.9g}" if isinstance(value, float) else value


def outcome(case, side):
    refusals = (AutogradError, IndexError, ValueError) if side is OURS else Exception
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return "done", plain(case(side))
    except refusals as error:
        return "refused", error


@pytest.mark.parametrize("name", sorted(CASES))
def test_they_are_those_of_pytorch(name):
    (ours, found), (theirs, expected) = outcome(CASES[name], OURS), outcome(CASES[name], THEIRS)
    assert ours == theirs, (found, expected)
    assert ours == "refused" or found == expected
