"""Operators that apply weights, rows of a table and a matrix; and how these get onto a GPU."""

from array_api_compat import array_namespace, is_numpy_array

from lm.operator import check_floating, check_integers, fail, lib, narrowed, operator, widened
from opdispatch import Tensor
from opdispatch.errors import ArgumentError


def check_embedding(weight, indices):
    check_floating("embedding", weight=weight)
    check_integers("embedding", indices=indices)
    if weight.ndim != 2:
        fail("embedding", "a matrix of weights", weight=weight)
    if is_numpy_array(indices) and indices.size:
        low, high = indices.min(), indices.max()
        if low < 0 or high >= weight.shape[0]:
            wrong = low if low < 0 else high
            raise ArgumentError(f"lm::embedding has {weight.shape[0]} rows, and none for {wrong}")
    return (*indices.shape, weight.shape[1]), weight.dtype


@operator("embedding(Tensor weight, Tensor indices) -> Tensor", check_embedding)
def embedding(weight, indices):
    """Return the rows of weight that indices name. Those on a GPU are not checked."""
    xp = array_namespace(weight)
    rows = xp.take(weight, xp.reshape(xp.asarray(indices), (-1,)), axis=0)
    return xp.reshape(rows, (*indices.shape, weight.shape[1]))


def check_linear(x, weight, bias=None):
    check_floating("linear", x=x, weight=weight, **({} if bias is None else {"bias": bias}))
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:]:
        fail("linear", "weight to be (out, in) for an x of (..., in)", x=x, weight=weight)
    if bias is not None and bias.shape != weight.shape[:1]:
        fail("linear", "bias to be (out,) for a weight of (out, in)", weight=weight, bias=bias)
    return (*x.shape[:-1], weight.shape[0]), x.dtype


@operator("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor", check_linear)
def linear(x, weight, bias=None):
    """x @ weight.T + bias; weight is (out, in)."""
    # GPUs multiply short floats themselves, and NumPy has no fast way to.
    wide = widened if is_numpy_array(x) else lambda array: array
    y = array_namespace(x).matmul(wide(x), wide(weight).T)
    return narrowed(y if bias is None else y + wide(bias), x.dtype)


lib.define("to(Tensor x, Device device) -> Tensor")


def to(x, device):
    """x on that device: itself, if it is there, or else a copy."""
    moved = Tensor(x).to(device)
    return moved if isinstance(x, Tensor) else moved.array


lib.impl("to", to, "CPU")
lib.impl("to", to, "CUDA")
