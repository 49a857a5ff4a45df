"""Gradients of tensors that move from one device to another, on a simulated accelerator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opdispatch import (
    AutogradError,
    DeviceError,
    DispatchKey,
    Library,
    Tensor,
    TorchDispatchMode,
    cpu_fallback,
    func,
    no_grad,
    profile,
    register_backend,
)
from opdispatch import array_api as xp
from opdispatch.autograd import Function, grad, gradcheck, gradgradcheck
from tests.simulated_accelerator import Accelerator

X = np.array([1.0, 2.0, 3.0])
THERE = "privateuseone:1"


@pytest.fixture(autouse=True)
def accelerator() -> Iterator[Accelerator]:
    backend = Accelerator()
    registration = register_backend(backend)
    fallbacks = Library("_", "IMPL")
    fallbacks.fallback(cpu_fallback, "PrivateUse1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is computed on the host
        yield backend
    fallbacks.close()
    registration.close()


def test_a_gradient_goes_back_to_the_device_that_its_tensor_came_from():
    x = Tensor(X, requires_grad=True)
    there = x.to(THERE)
    assert (there.device, there.requires_grad, there.is_leaf) == (THERE, True, False)
    assert repr(there.grad_fn) == "<ToCopyBackward>"
    assert there.to(THERE) is there
    loss = xp.sum((there * there).to("cpu") * 2.0)
    of_there, of_x = grad(loss, [there, x], retain_graph=True)
    assert (of_there.device, of_x.device) == (THERE, "cpu")
    assert of_x.array.tolist() == of_there.to("cpu").array.tolist() == [4, 8, 12]
    loss.backward()
    assert x.grad.array.tolist() == [4, 8, 12]


def test_cpu_is_a_move_to_the_host_that_is_recorded():
    x = Tensor(X, requires_grad=True)
    assert x.cpu() is x
    here = x.to(THERE).cpu()
    assert (here.device, repr(here.grad_fn)) == ("cpu", "<ToCopyBackward>")
    with pytest.raises(
        DeviceError, match=r"cannot be converted to a NumPy array .*tensor\.cpu\(\)"
    ):
        x.to(THERE).detach().numpy()
    assert x.to(THERE).numpy(force=True).tolist() == X.tolist()


def test_a_conversion_to_another_device_leads_back_from_there():
    x = Tensor(X, requires_grad=True)
    there = xp.astype(x, np.dtype("f4"), device=THERE)
    assert (there.device, repr(there.grad_fn)) == (THERE, "<AstypeBackward>")
    [found] = grad(xp.sum((there * there).to("cpu")), x, create_graph=True)
    assert (found.device, found.dtype, found.array.tolist()) == ("cpu", x.dtype, [2, 4, 6])
    assert grad(xp.sum(found), x)[0].array.tolist() == [2, 2, 2]


def test_both_derivatives_are_right():
    def function(x, y):
        x, y = x.to("privateuseone:0"), y.to_device(THERE)
        return (x.to(THERE) * y).to("cpu") * xp.asarray(y, device="cpu")

    arguments = [Tensor(X + n, requires_grad=True) for n in range(2)]
    assert gradcheck(function, arguments)
    assert gradgradcheck(function, arguments)


def test_a_move_is_recorded_where_calls_are():
    x = Tensor(X, requires_grad=True)
    with no_grad():
        there = x.to(THERE)
    assert (there.requires_grad, there.grad_fn) == (False, None)
    assert x.detach().to(THERE).grad_fn is None
    leaf = there.requires_grad_()
    xp.sum(leaf.to("cpu") * 3.0).backward()
    assert leaf.grad.device == THERE
    assert leaf.grad.to("cpu").array.tolist() == [3, 3, 3]


def test_a_view_that_moves_has_the_history_of_its_base():
    x = Tensor(X, requires_grad=True)
    y = x * 1.0
    part = y[1:]
    y[2] = x[0] * 5.0
    [of_x] = grad(xp.sum(part.to(THERE).to("cpu")), x)
    assert of_x.array.tolist() == [5, 1, 0]


def test_no_gradient_comes_back_from_where_there_are_no_elements():
    x = Tensor(X, requires_grad=True)
    meta = x.to("meta") * 2.0
    assert meta.requires_grad
    with pytest.raises(DeviceError, match="has no elements to copy"):
        xp.sum(meta).backward()


class Noting(TorchDispatchMode):
    """Notes the calls of ``astype``, and where they move what."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.moves: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name.name == "array::astype":
            self.moves.append((args[0].device, kwargs["device"]))
        return func(*args, **kwargs)


@pytest.mark.parametrize("key", [None, DispatchKey.PreDispatch])
def test_a_mode_sees_a_move_as_a_call(accelerator: Accelerator, key: DispatchKey | None):
    x = Tensor(X, requires_grad=True)
    with Noting(_dispatch_key=key) as mode:
        there = x.to(THERE)
        assert x.to("cpu") is x
        meta = x.to("meta")
        loss = xp.sum(there.to("cpu") * 2.0)  # there is no kernel: no mode is asked
    assert mode.moves == [("cpu", THERE), ("cpu", "meta")]
    assert accelerator.uploads == 1
    assert repr(there.grad_fn) == repr(meta.grad_fn) == "<ToCopyBackward>"
    loss.backward()
    assert (x.grad.device, x.grad.array.tolist()) == ("cpu", [2, 2, 2])


def test_a_mode_may_move_something_else(accelerator: Accelerator):
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **kwargs)
            return result if result.device == "cpu" else args[0] * 2

    x = Tensor(X, requires_grad=True)
    with Doubling():
        doubled = x.to(THERE)
    assert (doubled.device, doubled.array.tolist()) == ("cpu", [2, 4, 6])
    with Noting() as mode:
        named = Tensor(X, names=("N",)).to(THERE)  # for which astype has no kernel
    assert (named.device, mode.moves) == (THERE, [])


def test_moves_are_events_of_a_profile(accelerator: Accelerator):
    with profile(profile_memory=True) as prof:
        Tensor(X).to(THERE)
        xp.asarray(Tensor(X), device="meta")
    assert [event.name for event in prof.events()] == ["array::astype"] * 2
    assert [event.result_bytes for event in prof.events()][1] == 0
    before = accelerator.uploads
    assert xp.astype(Tensor(X), np.dtype("f4"), device=THERE).dtype == np.float32
    assert accelerator.uploads == before + 1


def test_the_gradient_of_a_number_of_the_host_is_on_the_host():
    v = Tensor(X).to(THERE)
    u = Tensor(np.array(2.0), requires_grad=True)
    w = Tensor(np.array([2.0]), requires_grad=True)
    for _ in range(2):  # the second gradient is added to the first
        xp.sum(v * u).backward()
    assert (u.grad.device, u.grad.array.tolist()) == ("cpu", 12)
    [found] = grad(xp.sum(v * u * xp.sum(w * w)), w)
    assert (found.device, found.array.tolist()) == ("cpu", [48])
    [first] = grad(xp.sum(v * u * u), u, create_graph=True)
    [second] = grad(first, u)
    assert (first.device, second.device, second.array.tolist()) == ("cpu", "cpu", 12)


def test_the_gradient_of_a_number_of_the_host_is_on_the_host_in_a_transformed_function():
    v = Tensor(X).to(THERE)
    found = func.grad(lambda u: xp.sum(v * u * u))(Tensor(np.array(2.0)))
    assert (found.device, found.array.tolist()) == ("cpu", 24)


class Misplaced(Function):
    """Has gradients on another device than its argument."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.to(THERE)


def test_a_gradient_of_several_elements_on_another_device_is_an_error():
    x = Tensor(X, requires_grad=True)
    with pytest.raises(AutogradError) as caught:
        xp.sum(Misplaced.apply(x)).backward()
    assert str(caught.value) == (
        "the gradient of MisplacedBackward for argument 0 is on privateuseone:1, and the tensor "
        "that it is of is on cpu"
    )
    number = Tensor(np.array(2.0), requires_grad=True)
    Misplaced.apply(number).backward()  # as PyTorch: a number is moved
    assert (number.grad.device, number.grad.array.tolist()) == ("cpu", 1)


def test_gradients_that_are_given_are_on_the_device_of_their_tensor():
    x = Tensor(X, requires_grad=True)
    with pytest.raises(AutogradError, match=r"gradient 0 is on privateuseone:1.* is on cpu$"):
        (x * 2.0).backward(Tensor(X).to(THERE))
    (loss := xp.sum(x * 2.0)).backward(xp.ones_like(loss).to(THERE))
    assert (x.grad.device, x.grad.array.tolist()) == ("cpu", [2, 2, 2])
    with pytest.raises(AutogradError, match=r"on privateuseone:1 was given to a .* on cpu$"):
        x.grad = Tensor(X).to(THERE)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_hook_puts_no_gradient_of_another_device_in_the_place_of_one(shape: tuple[int, ...]):
    x = Tensor(np.ones(shape), requires_grad=True)
    y = x * 2.0
    says = f"the hook .* returned a gradient on {THERE} in the place of one on cpu"
    with x.register_hook(lambda grad: grad.to(THERE)), pytest.raises(AutogradError, match=says):
        xp.sum(y).backward(retain_graph=True)
    assert x.grad is None
    with (
        y.grad_fn.register_prehook(lambda grads: (grads[0].to(THERE),)),
        pytest.raises(AutogradError, match=says),
    ):
        xp.sum(y).backward(retain_graph=True)
    xp.sum(y).backward()
    assert x.grad.device == "cpu"


def test_a_hook_may_move_what_comes_out_of_a_node_to_where_it_belongs():
    number = Tensor(np.array(2.0), requires_grad=True)
    y = number * Tensor(X).to(THERE)
    y.grad_fn.register_hook(lambda results, grads: (results[0].cpu(), None))
    xp.sum(y).backward()
    assert (number.grad.device, number.grad.array.tolist()) == ("cpu", 6)
