"""A user's kernel library, for mypy: decorators keep the types of what they decorate.

Checked by tests/unit/test_decorator_types.py; never imported.
"""

from collections.abc import Callable
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import opdispatch
from opdispatch import CustomOpDef, Library, TorchDispatchMode, custom_op

Array = NDArray[np.float64]
lib = Library("image", "DEF")


@custom_op("user::scale", mutates_args=())
def scale(x: Array, by: float = 2.0, *, clip: bool = False) -> Array:
    return x * by


assert_type(scale(np.ones(3), 3.0, clip=True), Array)
scale("text")  # error: [arg-type]
scale(np.ones(3), clip="yes")  # error: [arg-type]
scale(np.ones(3), nope=1)  # error: [call-arg]


@scale.register_kernel("cuda")
def scale_cuda(x: Array, by: float = 2.0, *, clip: bool = False) -> Array:
    return x * by


assert_type(scale_cuda(np.ones(3)), Array)
scale_cuda(1)  # error: [arg-type]


@scale.register_fake
def scale_fake(x: Array, by: float = 2.0, *, clip: bool = False) -> Array:
    return x


assert_type(scale_fake(np.ones(3)), Array)


@scale.register_vmap
def scale_vmap(info: Any, in_dims: tuple[int | None, ...], x: Array) -> tuple[Array, int]:
    return x, 0


@scale.register_torch_dispatch(TorchDispatchMode)
def scale_rule(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> str:
    return "seen"


assert_type(scale_rule(1, 2, 3, 4, 5), str)


def plain(x: Array) -> tuple[Array, int]:
    return x, 1


direct = custom_op("user::plain", plain, mutates_args=())
assert_type(direct(np.ones(3)), tuple[Array, int])
direct()  # error: [call-arg]


@opdispatch.impl("user::scale", "cpu")
def impl_by_name(x: Array) -> int:
    return 1


@opdispatch.impl(lib, "sobel", "CPU")
def impl_of_library(x: Array) -> int:
    return 1


@opdispatch.define(lib, "sobel(Tensor x) -> int")
def define_in_library(x: Array) -> int:
    return 1


@opdispatch.register_fake("user::scale")
def fake_by_name(x: Array) -> int:
    return 1


for function in (impl_by_name, impl_of_library, define_in_library, fake_by_name):
    assert_type(function(np.ones(3)), int)
impl_by_name("text")  # error: [arg-type]
assert_type(opdispatch.impl("user::scale", "cpu", plain)(np.ones(3)), tuple[Array, int])
opdispatch.define("user::other", "(Tensor x) -> Tensor")


@opdispatch.register_vmap("user::scale")
def vmap_by_name(info: Any, in_dims: Any, x: Array) -> tuple[Array, int]:
    return x, 0


assert_type(vmap_by_name(1, 2, np.ones(3)), tuple[Array, int])


@opdispatch.register_torch_dispatch("user::scale", TorchDispatchMode)
def rule_by_name(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> str:
    return "seen"


assert_type(rule_by_name(1, 2, 3, 4, 5), str)


def backward(ctx: Any, grad: Array) -> Array:
    return grad


scale.register_autograd(backward)
opdispatch.register_autograd("user::scale", backward)
passed_on: Callable[[Array], Array] = scale
of_any: CustomOpDef[..., Any] = scale
