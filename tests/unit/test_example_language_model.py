"""The operators of ``examples/language_model`` in one process: what must hold of their results."""

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opdispatch.array_library  # noqa: F401
from opdispatch import ArgumentError, DeviceError, MetaArray, Tensor, ops
from tests.language_model import lm, transformer

op = ops.lm
seeds = st.integers(0, 2**32 - 1)


def floats(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def close(ours, theirs, tolerance=2e-6):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)


X, W = floats(3, 5, 8), floats(8)
Q, K, V = floats(2, 4, 70, 8), floats(2, 2, 70, 8, seed=1), floats(2, 2, 70, 6, seed=2)
MASK = np.random.default_rng(0).random((2, 1, 70, 70)) < 0.5
SDPA = "scaled_dot_product_attention"

# One call of each operator, and of each way through it.
CALLS = {
    "rms_norm": ((X, W), {}),
    "rms_norm of two rows": ((floats(2, 1000), floats(1000), 1e-3), {}),
    "layer_norm": ((X, W, W), {}),
    "layer_norm without weights": ((X,), {}),
    "softmax": ((X,), {}),
    "softmax of the first dimension": ((X, 0), {}),
    "silu": ((X,), {}),
    "swiglu": ((X, X + 1), {}),
    "embedding": ((floats(7, 4), np.array([[0, 6, 6]])), {}),
    "linear": ((X, floats(4, 8)), {}),
    "linear with a bias": ((X, floats(4, 8), floats(4)), {}),
    "rotary_embedding": ((X, np.arange(5)), {"base": 500.0}),
    SDPA: ((Q, K, V), {"enable_gqa": True}),
    f"{SDPA}, causal": ((Q, K, V), {"enable_gqa": True, "is_causal": True}),
    f"{SDPA}, masked": ((Q, K, V), {"enable_gqa": True, "attn_mask": MASK}),
    f"{SDPA}, biased": ((Q[0, 0], K[0, 0], V[0, 0]), {"attn_mask": floats(70, 70), "scale": 0.5}),
}
CACHES = np.zeros((2, 2, 80, 8), np.float32), np.zeros((2, 2, 80, 6), np.float32)
CALLS["sdpa_with_kv_cache"] = ((Q, K, V, *CACHES, np.arange(70)), {})


def call(name, convert=np.asarray):
    """The call of that name, with its arrays converted."""
    args, kwargs = CALLS[name]

    def converted(value):
        return convert(value) if isinstance(value, np.ndarray) else value

    named = {key: converted(value) for key, value in kwargs.items()}
    return getattr(op, name.replace(",", "").split()[0])(*map(converted, args), **named)


# -- Rows ---------------------------------------------------------------------------------------


@given(seeds, st.floats(-1e4, 1e4, width=32), st.sampled_from([0, 1, -1]))
def test_rows_of_softmax_sum_to_one_whatever_is_added_to_them(seed, shift, dim):
    x = floats(4, 5, seed=seed) * 10
    y = op.softmax(x.astype(np.float64), dim)
    close(y.sum(dim), 1)
    close(op.softmax(x.astype(np.float64) + shift, dim), y)


def test_large_values_do_not_overflow():
    large = np.array([[-1e4, 0, 1e4]], np.float32)
    close(op.softmax(large), [[0, 0, 1]])
    close(op.silu(large), [[0, 0, 1e4]])
    half = np.full((1, 64), 300, np.float16)  # whose squares are beyond float16
    close(op.rms_norm(half, np.ones(64, np.float16)), 1)


@given(seeds, st.floats(0.01, 100))
def test_norms_forget_the_scale_and_layer_norm_the_mean(seed, scale):
    x, ones = floats(3, 16, seed=seed).astype(np.float64), np.ones(16)
    y = op.rms_norm(x, ones, 0.0)
    close((y * y).mean(-1), 1)
    close(op.rms_norm(x * scale, ones, 0.0), y)
    close(op.layer_norm(x * scale + 7, eps=0.0), op.layer_norm(x, eps=0.0))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_short_floats_are_calculated_in_float32(name, dtype):
    def rounded(array):
        return array.astype(dtype) if array.dtype == np.float32 else array

    ours = call(name, rounded)
    theirs = call(name, lambda array: rounded(array).astype(array.dtype))
    assert ours.dtype == dtype
    np.testing.assert_array_equal(ours, theirs.astype(dtype))


# -- Positions ----------------------------------------------------------------------------------


@given(seeds, st.integers(0, 1000))
def test_rotated_queries_and_keys_know_how_far_apart_they_are_and_no_more(seed, shift):
    q, k = floats(1, 8, seed=seed).astype(np.float64), floats(1, 8, seed=seed + 1)

    def score(at, other):
        one = op.rotary_embedding(q, np.array([at]))
        return float((one * op.rotary_embedding(k.astype(np.float64), np.array([other]))).sum())

    assert score(9 + shift, 4 + shift) == pytest.approx(score(9, 4), abs=1e-9)


# -- Attention ----------------------------------------------------------------------------------


def textbook_attention(q, k, v, sees):
    scores = np.where(sees, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("scores_at_a_time", [1, 1 << 18])
def test_blocks_of_attention_make_the_whole(length, scores_at_a_time, monkeypatch):
    monkeypatch.setattr(lm.attention, "HOST_SCORES", scores_at_a_time)
    q, k, v = (floats(2, 3, length, 8, seed=seed) for seed in range(3))
    whole = np.ones((length, length), bool)
    close(op.scaled_dot_product_attention(q, k, v), textbook_attention(q, k, v, whole))
    causal = op.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(causal, textbook_attention(q, k, v, np.tril(whole)))
    masked = op.scaled_dot_product_attention(q, k, v, attn_mask=np.tril(whole))
    close(masked, causal)


def test_memory_grows_with_the_length_and_not_with_its_square():
    q, k, v = (floats(2, 2048, 16, seed=seed) for seed in range(3))
    tracemalloc.start()
    op.scaled_dot_product_attention(q, k, v)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 2048 * 2048 * 4 / 5  # of the bytes that all scores have


@given(seeds, st.integers(1, 69))
def test_causal_attention_does_not_look_ahead(seed, now):
    later = np.arange(70)[:, None] >= now
    other = np.where(later, K + floats(2, 2, 70, 8, seed=seed), K)
    ours = op.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True)
    theirs = op.scaled_dot_product_attention(Q, other, V, is_causal=True, enable_gqa=True)
    np.testing.assert_array_equal(ours[..., :now, :], theirs[..., :now, :])
    assert (ours[..., now:, :] != theirs[..., now:, :]).any()


def test_grouped_queries_are_queries_with_repeated_keys():
    ours = op.scaled_dot_product_attention(Q, K, V, enable_gqa=True)
    keys, values = np.repeat(K, 2, axis=1), np.repeat(V, 2, axis=1)
    close(ours, op.scaled_dot_product_attention(Q, keys, values))


@given(st.sets(st.integers(1, 69)))
def test_a_cache_gives_what_full_recomputation_gives(cuts):
    caches = np.zeros((2, 2, 80, 8), np.float32), np.zeros((2, 2, 80, 6), np.float32)
    parts = []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 70], strict=True):
        new = (array[..., start:end, :] for array in (Q, K, V))
        parts.append(op.sdpa_with_kv_cache(*new, *caches, np.arange(start, end)))
    whole = op.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True)
    close(np.concatenate(parts, -2), whole)
    np.testing.assert_array_equal(caches[0][..., :70, :], K)
    assert not caches[0][..., 70:, :].any()


@pytest.mark.parametrize("positions", [[7, 8], [-1, 0], [1, 0], [0, 2]])
def test_positions_that_a_cache_does_not_have_are_refused_before_it_is_written_to(positions):
    caches = np.zeros((2, 8, 4)), np.zeros((2, 8, 4))
    new = np.ones((2, 2, 4))
    with pytest.raises(ArgumentError, match="expected 2 positions in order, below the capacity 8"):
        op.sdpa_with_kv_cache(new, new, new, *caches, np.array(positions))
    assert not np.any(caches)


# -- Shapes and dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_kernels_for_meta_say_what_results_are(name):
    ours = call(name, lambda array: MetaArray(array.shape, array.dtype))
    result = call(name)
    assert (ours.shape, ours.dtype) == (result.shape, result.dtype)


@pytest.mark.parametrize("name", CALLS)
def test_tensors_give_tensors(name):
    result = call(name, Tensor)
    assert type(result) is Tensor
    np.testing.assert_array_equal(result.array, call(name))


ZEROS = np.zeros((2, 3), np.float32)
REFUSED = {
    "rms_norm": ((ZEROS, np.zeros(2, np.float32)), r"x \[2, 3\] and weight \[2\]"),
    "layer_norm": ((ZEROS, None, np.zeros(2, np.float32)), r"x \[2, 3\] and bias \[2\]"),
    "softmax": ((ZEROS, 2), r"a dimension that x has, not 2, got x \[2, 3\]"),
    "swiglu": ((ZEROS, ZEROS.T), r"gate \[2, 3\] and up \[3, 2\]"),
    "linear": ((ZEROS, ZEROS.T), r"x \[2, 3\] and weight \[3, 2\]"),
    "embedding": ((ZEROS, np.array([0, 2])), "has 2 rows, and none for 2"),
    "rotary_embedding": ((ZEROS, np.arange(2)), r"x \[2, 3\] and positions \[2\]"),
    SDPA: ((ZEROS, ZEROS, ZEROS.T), r"query \[2, 3\] and key \[2, 3\] and value \[3, 2\]"),
    "silu": ((np.arange(3),), "expected floating-point elements .* got x int64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shape_error_names_both_shapes(name):
    args, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=f"lm::{name} .*{message}"):
        getattr(op, name)(*args)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the same heads in query and key, or enable_gqa"),
        ({"enable_gqa": True, "attn_mask": MASK[..., :9]}, r"broadcasts to \[2, 4, 70, 70\]"),
        ({"enable_gqa": True, "attn_mask": MASK, "is_causal": True}, "got both"),
        ({"enable_gqa": True, "attn_mask": MASK.astype(int)}, "bools or floats"),
    ],
)
def test_attention_refuses_what_is_ambiguous(options, message):
    with pytest.raises(ArgumentError, match=message):
        op.scaled_dot_product_attention(Q, K, V, **options)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0,)])
def test_rows_without_elements_give_rows_without_elements(shape):
    x, weight = np.zeros(shape, np.float32), np.ones(shape[-1:], np.float32)
    for y in (op.rms_norm(x, weight), op.layer_norm(x), op.softmax(x), op.silu(x)):
        assert (y.shape, y.dtype) == (shape, np.float32)


def test_queries_that_see_no_key_get_zeros():
    none = op.scaled_dot_product_attention(Q[0], K[0, :, :0], V[0, :, :0], enable_gqa=True)
    assert none.shape == (4, 70, 6)
    assert not none.any()
    hidden = np.ones((70, 1), bool)
    hidden[3] = False
    rows = op.scaled_dot_product_attention(Q, K, V, attn_mask=hidden, enable_gqa=True)
    assert not rows[..., 3, :].any()
    assert rows[..., 4, :].all()


# -- Other arrays -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALLS)
def test_the_source_needs_nothing_but_the_array_api_standard(name):
    strict = pytest.importorskip("array_api_strict")
    kernel_of = {
        each: getattr(module, each, None)
        for module in (lm.rows, lm.weights, lm.positions, lm.attention)
        for each in vars(module)
    }
    args, kwargs = CALLS[name]

    def converted(value):
        return strict.asarray(value) if isinstance(value, np.ndarray) else value

    named = {key: converted(value) for key, value in kwargs.items()}
    ours = kernel_of[name.replace(",", "").split()[0]](*map(converted, args), **named)
    close(np.asarray(ours), call(name))


def test_arrays_in_host_memory_are_refused_among_those_on_a_gpu(cupy_stand_in):
    on_gpu = cupy_stand_in.asarray(ZEROS)
    with pytest.raises(DeviceError, match="lm::swiglu expected its tensors on one GPU"):
        op.swiglu(on_gpu, ZEROS)


def test_to_the_same_device_does_not_copy():
    assert op.to(X, "cpu") is X


@pytest.mark.gpu
def test_results_are_the_same_on_a_gpu(cupy):
    for name in CALLS:
        ours = call(name, lambda array: op.to(array, "cuda"))
        assert type(ours) is cupy.ndarray, name
        close(op.to(ours, "cpu"), call(name), 1e-5)


# -- The transformer ----------------------------------------------------------------------------


def test_the_transformer_recites_its_text_token_by_token():
    config = transformer.Config(num_hidden_layers=2)
    text = transformer.encode(transformer.TEXT)
    weights = transformer.make_weights(config)
    weights = transformer.fit_output_layer(ops, config, weights, text)
    caches = transformer.make_caches(config)
    for position in range(len(text) - 1):
        token, at = text[position : position + 1], np.array([position])
        hidden = transformer.compute_hidden(ops, config, weights, caches, token, at)
        assert transformer.choose_tokens(ops, weights, hidden)[0] == text[position + 1]
