"""Operators that work on each row of a tensor, or on each element."""

import numpy as np
from array_api_compat import array_namespace

from lm.operator import check_floating, fail, narrowed, operator, widened
from lm.rms_norm_cuda import launch


def check_rows(name, x, **weights):
    """Weights have one element for each of a row of x, its last dimension."""
    rows = {what: array for what, array in weights.items() if array is not None}
    check_floating(name, x=x, **rows)
    for what, array in rows.items():
        if array.ndim != 1 or array.shape != x.shape[-1:]:
            fail(name, f"{what} to have the last dimension of x", x=x, **{what: array})
    return x.shape, x.dtype


def check_rms_norm(x, weight, eps=1e-6):
    return check_rows("rms_norm", x, weight=weight)


def rms_norm_on_the_gpu(x, weight, eps=1e-6):
    return launch(x, weight, eps) if x.dtype == np.float32 else rms_norm(x, weight, eps)


@operator(
    "rms_norm(Tensor x, Tensor weight, float eps=1e-6) -> Tensor",
    check_rms_norm,
    cuda=rms_norm_on_the_gpu,
)
def rms_norm(x, weight, eps=1e-6):
    """Rows divided by their root mean square, times weight: arXiv:1910.07467."""
    xp, wide = array_namespace(x), widened(x)
    inverse = 1 / xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return narrowed(wide * inverse * widened(weight), x.dtype)


def check_layer_norm(x, weight=None, bias=None, eps=1e-5):
    if x.ndim == 0:
        fail("layer_norm", "rows", x=x)
    return check_rows("layer_norm", x, weight=weight, bias=bias)


@operator(
    "layer_norm(Tensor x, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) -> Tensor",
    check_layer_norm,
)
def layer_norm(x, weight=None, bias=None, eps=1e-5):
    """Rows with mean 0 and variance 1, times weight, plus bias: arXiv:1607.06450."""
    xp, wide = array_namespace(x), widened(x)
    wide = wide - xp.mean(wide, axis=-1, keepdims=True)
    y = wide / xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    if weight is not None:
        y = y * widened(weight)
    if bias is not None:
        y = y + widened(bias)
    return narrowed(y, x.dtype)


def check_softmax(x, dim=-1):
    check_floating("softmax", x=x)
    if not -x.ndim <= dim < x.ndim:
        fail("softmax", f"a dimension that x has, not {dim}", x=x)
    return x.shape, x.dtype


@operator("softmax(Tensor x, int dim=-1) -> Tensor", check_softmax)
def softmax(x, dim=-1):
    """Exponentials that sum to one along a dimension; none of them overflows."""
    xp, wide = array_namespace(x), widened(x)
    y = xp.exp(wide - xp.max(wide, axis=dim, keepdims=True))
    return narrowed(y / xp.sum(y, axis=dim, keepdims=True), x.dtype)


def check_silu(x):
    check_floating("silu", x=x)
    return x.shape, x.dtype


@operator("silu(Tensor x) -> Tensor", check_silu)
def silu(x):
    """x times its logistic function."""
    xp, wide = array_namespace(x), widened(x)
    decay = xp.exp(-xp.abs(wide))  # of which nothing overflows
    logistic = xp.where(wide < 0, decay, xp.ones_like(wide)) / (1 + decay)
    return narrowed(wide * logistic, x.dtype)


def check_swiglu(gate, up):
    check_floating("swiglu", gate=gate, up=up)
    if gate.shape != up.shape:
        fail("swiglu", "two tensors of one shape", gate=gate, up=up)
    return gate.shape, gate.dtype


@operator("swiglu(Tensor gate, Tensor up) -> Tensor", check_swiglu)
def swiglu(gate, up):
    """silu(gate) * up: arXiv:2002.05202."""
    return narrowed(silu(widened(gate)) * widened(up), gate.dtype)
