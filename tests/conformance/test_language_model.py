"""The operators of ``examples/language_model`` beside those of PyTorch, where it is installed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import ArgumentError, ops
from tests.language_model import lm  # noqa: F401  registers them

torch = pytest.importorskip("torch")
F = torch.nn.functional
op = ops.lm

# Of results that are small numbers. Both sides round, in different orders.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "float16": 1e-2}


def rotated(x, positions, base=10000.0):
    """Pairs as complex numbers, which are turned."""
    half = x.shape[-1] // 2
    angles = torch.outer(positions.double(), base ** (-torch.arange(half).double() / half))
    turned = torch.complex(x[..., :half].double(), x[..., half:].double())
    turned = turned * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], -1).to(x.dtype)


ROWS = {
    "rms_norm": (op.rms_norm, lambda x, w, b: F.rms_norm(x, w.shape, w, 1e-6), "xw"),
    "layer_norm": (op.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), "xwb"),
    "softmax": (op.softmax, lambda x, w, b: F.softmax(x, -1), "x"),
    "silu": (op.silu, lambda x, w, b: F.silu(x), "x"),
    "swiglu": (lambda x: op.swiglu(x, x), lambda x, w, b: F.silu(x) * x, "x"),
    "linear": (lambda x: op.linear(x, x), lambda x, w, b: F.linear(x, x), "x"),
}


def arrays(seed, dtype, *shapes):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def difference(ours, theirs):
    theirs = theirs.numpy()
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return np.abs(ours.astype(np.float64) - theirs).max(initial=0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ROWS)
@given(st.integers(0, 2**32 - 1), st.integers(0, 9), st.integers(1, 300))
@settings(max_examples=30)
def test_rows_are_those_of_pytorch(name, dtype, seed, rows, width):
    ours, theirs, given_ = ROWS[name]
    values = arrays(seed, dtype, (rows, width), width, width)
    result = ours(*values[: len(given_)])
    expected = theirs(*map(torch.from_numpy, values))
    # Sums of products grow with their number.
    tolerance = TOLERANCE[dtype] * (10 * width**0.5 if name == "linear" else 2)
    assert difference(result, expected) <= tolerance


def test_softmax_of_a_dimension_and_embedding_are_those_of_pytorch():
    (x,) = arrays(0, "float32", (4, 5, 6))
    for dim in range(-3, 3):
        expected = F.softmax(torch.from_numpy(x), dim)
        assert difference(op.softmax(x, dim), expected) <= TOLERANCE["float32"]
    indices = np.array([[3, 0], [1, 3]])
    expected = F.embedding(torch.from_numpy(indices), torch.from_numpy(x[0]))
    assert difference(op.embedding(x[0], indices), expected) == 0


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rotary_embedding_turns_complex_numbers(dtype):
    (x,) = arrays(0, dtype, (2, 9, 64))
    positions = np.arange(5000, 5009)
    expected = rotated(torch.from_numpy(x), torch.from_numpy(positions))
    assert difference(op.rotary_embedding(x, positions), expected) <= TOLERANCE[dtype]


@st.composite
def attention_calls(draw):
    """Shapes of query, key and value, and options, as PyTorch takes them."""
    groups, batch = draw(st.sampled_from([1, 1, 2, 4])), draw(st.integers(1, 2))
    heads, width = draw(st.integers(1, 2)), draw(st.sampled_from([1, 8, 20]))
    length, keys = draw(st.integers(1, 150)), draw(st.integers(0, 150))
    query, key = (batch, heads * groups, length, width), (batch, heads, keys, width)
    options = {"enable_gqa": True} if groups > 1 else {}
    if draw(st.booleans()):
        options["scale"] = draw(st.floats(0.01, 2))
    mask = draw(st.sampled_from([None, "bool", "float", "causal"]))
    if mask == "causal":
        options["is_causal"] = True
        mask = None
    heads_of_mask = draw(st.sampled_from([1, heads * groups]))
    return query, key, options, mask and (mask, (batch, heads_of_mask, length, keys))


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(st.integers(0, 2**32 - 1), attention_calls())
@settings(max_examples=60)
def test_attention_is_that_of_pytorch(dtype, seed, call):
    query, key, options, mask = call
    values = arrays(seed, dtype, query, key, key)
    ours, theirs = dict(options), dict(options)
    if mask is not None:
        (scores,) = arrays(seed + 1, dtype, mask[1])
        ours["attn_mask"] = scores > 0 if mask[0] == "bool" else scores
        theirs["attn_mask"] = torch.from_numpy(ours["attn_mask"])
    result = op.scaled_dot_product_attention(*values, **ours)
    expected = F.scaled_dot_product_attention(*map(torch.from_numpy, values), **theirs)
    assert difference(result, expected) <= TOLERANCE[dtype]


def test_arguments_refused_by_pytorch_are_refused():
    q, k = arrays(0, "float32", (1, 4, 3, 8), (1, 3, 3, 8))
    for options in ({}, {"enable_gqa": True}):
        tensors = [torch.from_numpy(array) for array in (q, k, k)]
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(*tensors, **options)
        with pytest.raises(ArgumentError):
            op.scaled_dot_product_attention(q, k, k, **options)
