"""Philox4x64-10 on a GPU, with the same words as ``numpy.random.Philox``.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). NumPy
increments the counter before the first block.
"""

from __future__ import annotations

import functools
from typing import Any

from opdispatch.tensors.generator import WORDS_OF_BLOCK, GeneratorState

ROUNDS = """
    unsigned long long c[4] = {block + 1ULL, block + 1ULL == 0 ? 1ULL : 0ULL, 0ULL, 0ULL};
    unsigned long long k0 = seed, k1 = 0ULL;
    for (int round = 0; round < 10; ++round) {
        const unsigned long long high0 = __umul64hi(0xD2E7470EE14C6C93ULL, c[0]);
        const unsigned long long low0 = 0xD2E7470EE14C6C93ULL * c[0];
        const unsigned long long high1 = __umul64hi(0xCA5A826395121157ULL, c[2]);
        const unsigned long long low1 = 0xCA5A826395121157ULL * c[2];
        c[0] = high1 ^ c[1] ^ k0;
        c[1] = low1;
        c[2] = high0 ^ c[3] ^ k1;
        c[3] = low0;
        k0 += 0x9E3779B97F4A7C15ULL;
        k1 += 0xBB67AE8584CAA73BULL;
    }
"""
"""CUDA C source that computes the four words ``c`` of ``block`` from ``seed``."""

_BODY = f"""
    const unsigned long long block = offset + i / {WORDS_OF_BLOCK}ULL;
    {ROUNDS}
    word = c[i % {WORDS_OF_BLOCK}];
"""


def philox_words(cupy: Any, state: GeneratorState, count: int) -> Any:
    """Return ``count`` uint64 words, those of ``words_from``, on the current GPU."""
    words = cupy.empty(count, "uint64")
    if count:
        _kernel(cupy)(cupy.uint64(state.seed), cupy.uint64(state.offset), words)
    return words


@functools.cache
def _kernel(cupy: Any) -> Any:
    return cupy.ElementwiseKernel(
        "uint64 seed, uint64 offset", "uint64 word", _BODY, "opdispatch_philox"
    )
