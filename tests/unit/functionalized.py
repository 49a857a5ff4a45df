"""Common parts of tests of functionalized functions: tensors, and a mode that refuses calls."""

import numpy as np

from opdispatch import (
    Tensor,
    TorchDispatchMode,
    functionalize,
)

MODES = ("mutations", "mutations_and_views")


def tensor(*shape, dtype=np.float64):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape) + 1
    return Tensor((values * (1 + 2j) if dtype is complex else values).astype(dtype))


class Functional(TorchDispatchMode):
    """Refuses what should have been removed, and notes what is called."""

    def __init__(self, remove):
        super().__init__()
        self.remove, self.called = remove, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name.unqualified_name
        self.called.append(name)
        assert name == "copy_" or not func.schema.is_mutable
        if self.remove == "mutations_and_views":
            aliases = any(returned.alias_info is not None for returned in func.schema.returns)
            assert name in ("copy_", "astype") or not aliases
        return func(*args, **(kwargs or {}))


def flat(values):
    if isinstance(values, list | tuple):
        return [each for value in values for each in flat(value)]
    return [values]


def check(function, *shapes, dtype=np.float64):
    """Compare it with itself, functionalized in both ways; return what was called."""
    called = []
    for remove in MODES:
        eager = [tensor(*shape, dtype=dtype) for shape in shapes]
        given_ = [tensor(*shape, dtype=dtype) for shape in shapes]
        expected = function(*eager)
        with Functional(remove) as mode:
            result = functionalize(function, remove=remove)(*given_)
        for one, other in zip(flat((result, given_)), flat((expected, eager)), strict=True):
            assert type(one) is Tensor
            assert one.dtype == other.dtype
            # Sums of elements that lie in another order differ in their last bits.
            np.testing.assert_allclose(one.array, other.array, rtol=1e-12)
        called.append(mode.called)
    return called


def called_in(function, *args):
    with Functional("mutations") as mode:
        result = functionalize(function)(*args)
    return mode.called, result
