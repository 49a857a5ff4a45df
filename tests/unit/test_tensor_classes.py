"""Classes that are derived from Tensor: those that handle operators, and those that do not."""

import copy
import pickle
from typing import ClassVar

import numpy as np
import pytest

from opdispatch import DispatchKey, Library, Tensor, TorchDispatchMode, autocast, ops, vmap
from opdispatch import array_api as xp
from opdispatch.autograd import grad


class Parameter(Tensor):
    """It handles nothing, and has an argument and an attribute of its own."""

    def __init__(self, name, array):
        super().__init__(np.asarray(array, dtype=float), requires_grad=True)
        self.name = name


class Logged(Tensor):
    """It handles operators: notes them, and wraps their results."""

    asked: ClassVar = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.asked.append((str(func.name), types))
        plain = [Tensor(each.array) if isinstance(each, cls) else each for each in args]
        result = func(*plain, **(kwargs or {}))
        return cls(result.array) if isinstance(result, Tensor) else result


@pytest.fixture(autouse=True)
def _nothing_was_asked():
    Logged.asked.clear()


def logged(*numbers, requires_grad=False):
    return Logged(np.array(numbers), requires_grad=requires_grad)


# -- a class that handles nothing ------------------------------------------------------------------


def test_arithmetic_of_subclass_without_handler_gives_plain_tensors():
    x = Parameter("x", [1.0, 2.0])
    y = xp.sum(x * x + np.ones(2))
    assert (type(y), y.array.item()) == (Tensor, 7.0)
    y.backward()
    assert x.grad.array.tolist() == [2.0, 4.0]
    assert grad(xp.sum(xp.exp(x)), x)[0].shape == (2,)


def test_they_are_written_to_and_have_views():
    x = Parameter("x", [1.0, 2.0]).requires_grad_(False)
    part = x[1:]
    part *= 10
    x += 1
    assert (x.array.tolist(), x._version, type(x)) == ([2.0, 21.0], 2, Parameter)
    other = ops.array.setitem_.Scalar(x, [0], [None], [None], [], 5.0)
    assert other is x


def test_kernels_get_plain_tensors_also_in_lists():
    seen = []

    def kernel(x, others):
        seen.append((type(x), [type(each) for each in others]))
        return Tensor(x.array)

    with Library("tensor_classes", "DEF") as library:
        library.define("first(Tensor x, Tensor[] others) -> Tensor")
        library.impl("first", kernel, "CPU")
        x = Parameter("x", [1.0])
        ops.tensor_classes.first(x, [x, Tensor(np.ones(1))])
    assert seen == [(Tensor, [Tensor, Tensor])]


def test_copies_are_of_the_class_and_have_its_attributes():
    x = Parameter("x", [1.0])
    for copied in (x.detach(), copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert (type(copied), copied.name, copied.array.tolist()) == (Parameter, "x", [1.0])


def test_they_take_part_in_autocast_modes_and_transforms():
    x = Parameter("x", np.eye(2))
    with autocast("cpu"):
        assert (xp.astype(x, xp.float32) @ xp.astype(x, xp.float32)).dtype.name == "bfloat16"

    class Seen(TorchDispatchMode):
        names: ClassVar = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append((func.name.name, types))
            return func(*args, **(kwargs or {}))

    with Seen():
        assert (x * x).requires_grad
    assert Seen.names == [("array::multiply", ())]
    assert vmap(xp.sum)(x).array.tolist() == [1.0, 1.0]


# -- a class that handles operators ----------------------------------------------------------------


def test_class_with_handler_gets_each_operator():
    x = logged(1.0, 2.0)
    assert x.key_set.has(DispatchKey.Python)
    y = x + 1
    assert (type(y), y.array.tolist()) == (Logged, [2.0, 3.0])
    assert Logged.asked == [("array::add.Scalar", (Logged,))]


def test_gradients_are_recorded_before_it_is_asked():
    x = logged(1.0, 2.0, requires_grad=True)
    y = xp.sum(xp.exp(x * x))
    assert (type(y), y.requires_grad) == (Logged, True)
    y.backward()
    assert np.allclose(np.asarray(x.grad), 2 * x.array * np.exp(x.array**2))
    assert [name for name, _ in Logged.asked][:3] == [
        *("array::multiply.Tensor", "array::exp", "array::sum")
    ]


def test_a_class_beneath_may_handle_what_its_base_does_not():
    class Handling(Parameter):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return Tensor(np.full(1, 42.0))

    assert (Handling("x", [1.0]) * 2).array.tolist() == [42.0]
