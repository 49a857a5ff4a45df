"""Scaled dot-product attention, with a key/value cache and without."""

import math

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from lm.operator import FLOATS, check_floating, check_integers, fail, narrowed, operator, widened
from opdispatch.errors import ArgumentError

# How many scores are there at a time, so that memory grows with the length of a sequence and not
# with its square: what fits a core's cache, and much where starting a kernel is what takes time.
HOST_SCORES, GPU_SCORES = 1 << 18, 1 << 26
QUERIES = 64


def check_attention(name, query, key, value, enable_gqa):
    q, k, v = query.shape, key.shape, value.shape
    given = {"query": query, "key": key, "value": value}
    check_floating(name, **given)
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[:-1] != v[:-1]:
        fail(name, "query (..., L, E), key (..., S, E) and value (..., S, V)", **given)
    if not enable_gqa:
        if q[:-2] != k[:-2]:
            fail(name, "the same heads in query and key, or enable_gqa", query=query, key=key)
    elif len(q) < 3 or len(q) != len(k) or q[:-3] != k[:-3] or not k[-3] or q[-3] % k[-3]:
        fail(name, "the heads of query to be a multiple of those of key", query=query, key=key)
    return (*q[:-1], v[-1]), query.dtype


def check_scaled_dot_product_attention(
    query, key, value, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    name = "scaled_dot_product_attention"
    shape, dtype = check_attention(name, query, key, value, enable_gqa)
    if attn_mask is not None:
        if is_causal:
            raise ArgumentError(f"lm::{name} expected attn_mask or is_causal, got both")
        if np.dtype(attn_mask.dtype) not in FLOATS | {np.dtype(bool)}:
            raise ArgumentError(
                f"lm::{name} expected a mask of bools or floats, not of {attn_mask.dtype}"
            )
        scores = (*shape[:-1], key.shape[-2])
        extents = zip(reversed(attn_mask.shape), reversed(scores), strict=False)
        if attn_mask.ndim > len(scores) or any(one not in (1, other) for one, other in extents):
            fail(name, f"a mask that broadcasts to {list(scores)}", attn_mask=attn_mask)
    return shape, dtype


@operator(
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? attn_mask=None, bool is_causal=False, float? scale=None, bool enable_gqa=False)"
    " -> Tensor",
    check_scaled_dot_product_attention,
)
def scaled_dot_product_attention(
    query, key, value, *, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    """softmax(query @ key.T * scale + mask) @ value: arXiv:1706.03762, and arXiv:2305.13245.

    query is (..., L, E), key (..., S, E), value (..., S, V). Without ``scale``, it is 1/sqrt(E).
    A mask is true where a query sees a key, or is added to the scores; a query that sees no key
    gets zeros. With ``is_causal`` the i-th query sees i + 1 keys.
    """
    first = 1 if is_causal else None
    return attend(query, key, value, mask=attn_mask, first=first, scale=scale)


def check_sdpa_with_kv_cache(
    query, key, value, key_cache, value_cache, cache_position, *, scale=None
):
    name = "sdpa_with_kv_cache"
    shape, dtype = check_attention(name, query, key, value, query.ndim > 2)
    check_integers(name, cache_position=cache_position)
    for new, cache in ((key, key_cache), (value, value_cache)):
        check_floating(name, new=new, cache=cache)
        if new.shape[:-2] != cache.shape[:-2] or new.shape[-1:] != cache.shape[-1:]:
            fail(name, "a cache of (..., capacity, width)", new=new, cache=cache)
    if key_cache.shape[:-1] != value_cache.shape[:-1]:
        fail(name, "caches of one capacity", key_cache=key_cache, value_cache=value_cache)
    if not query.shape[-2:-1] == key.shape[-2:-1] == cache_position.shape:
        expected = "one query, key and position for each new token"
        fail(name, expected, query=query, key=key, cache_position=cache_position)
    return shape, dtype


@operator(
    "sdpa_with_kv_cache(Tensor query, Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor cache_position, *, float? scale=None) -> Tensor",
    check_sdpa_with_kv_cache,
)
def sdpa_with_kv_cache(query, key, value, key_cache, value_cache, cache_position, *, scale=None):
    """Write key and value into caches, and attend causally to all until there.

    query is (..., heads, L, E), key and value (..., key heads, L, width), the caches (..., key
    heads, capacity, width) and the positions (L,), one after the other. Raises ArgumentError if
    they are not, or the capacity does not suffice.
    """
    start, last = int(cache_position[0]), int(cache_position[-1])
    end, capacity = start + key.shape[-2], key_cache.shape[-2]
    if start < 0 or last != end - 1 or end > capacity:
        raise ArgumentError(
            f"lm::sdpa_with_kv_cache expected {key.shape[-2]} positions in order, below the "
            f"capacity {capacity} of its caches, got {start} to {last}"
        )
    key_cache[..., start:end, :] = key
    value_cache[..., start:end, :] = value
    keys, values = key_cache[..., :end, :], value_cache[..., :end, :]
    return attend(query, keys, values, first=start + 1, scale=scale)


def attend(query, key, value, *, first, scale, mask=None):
    """Attention, a block of scores at a time. ``first``: how many keys the first query sees."""
    xp, leading, (length, width) = array_namespace(query), query.shape[:-2], query.shape[-2:]
    keys, batch = key.shape[-2], math.prod(key.shape[:-2])
    group = math.prod(leading) // batch  # queries that share their keys
    q = xp.reshape(widened(query), (batch, group, length, width))
    k = xp.matrix_transpose(xp.reshape(widened(key), (batch, keys, width)))
    v = xp.reshape(widened(value), (batch, keys, value.shape[-1]))
    q = q * (1 / math.sqrt(max(width, 1)) if scale is None else scale)
    y = xp.zeros((batch, group, length, v.shape[-1]), dtype=v.dtype)
    budget = HOST_SCORES if is_numpy_array(query) else GPU_SCORES
    for top in range(0, length if keys else 0, QUERIES):
        rows = slice(top, min(top + QUERIES, length))
        count = rows.stop - top
        seen = keys if first is None else first + rows.stop - 1
        seen, bias = min(seen, keys), None
        if mask is not None:
            part = mask if mask.ndim < 2 or mask.shape[-2] == 1 else mask[..., rows, :]
            part = xp.broadcast_to(part, (*leading, count, keys))
            bias = as_bias(xp.reshape(part, (batch, group, count, keys)), v.dtype)
        elif first is not None and first + top < seen:
            sees = xp.arange(count)[:, None] + (first + top)
            bias = as_bias((xp.arange(seen)[None, :] < sees)[None, None, ...], v.dtype)
        step = max(1, budget // (group * count * seen))
        for at in range(0, batch, step):
            some = slice(at, min(at + step, batch))
            q_some, k_some, v_some = q[some, :, rows, :], k[some, :, :seen], v[some, :seen, :]
            bias_some = bias if mask is None else bias[some, ...]
            y[some, :, rows, :] = mix(q_some, k_some, v_some, bias_some)
    return narrowed(xp.reshape(y, (*leading, length, v.shape[-1])), query.dtype)


def mix(q, k, v, bias):
    """softmax(q @ k + bias) @ v. Queries that see nothing get zeros."""
    xp, (batch, group, count, width) = array_namespace(q), q.shape
    # Queries that share their keys are multiplied with them at once.
    scores = xp.matmul(xp.reshape(q, (batch, group * count, width)), k)
    scores = xp.reshape(scores, (batch, group, count, k.shape[-1]))
    if bias is not None:
        scores += bias
    high = xp.max(scores, axis=-1, keepdims=True)
    scores -= xp.where(high == -math.inf, xp.zeros_like(high), high)
    weights = xp.exp(scores)
    total = xp.sum(weights, axis=-1, keepdims=True)
    mixed = xp.matmul(xp.reshape(weights, (batch, group * count, k.shape[-1])), v)
    mixed = xp.reshape(mixed, (batch, group, count, v.shape[-1]))
    return mixed / xp.where(total == 0, xp.ones_like(total), total)


def as_bias(mask, dtype):
    """Return the bias of scores: 0 where the mask is true, minus infinity elsewhere."""
    xp = array_namespace(mask)
    if mask.dtype != xp.bool:
        return xp.astype(mask, dtype)
    nothing, never = xp.asarray(0.0, dtype=dtype), xp.asarray(-math.inf, dtype=dtype)
    return xp.where(mask, nothing, never)
