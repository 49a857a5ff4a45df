"""Operators without a derivative."""

from __future__ import annotations

_COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
_LOGICAL = ("logical_and", "logical_or", "logical_xor")

CONSTANT = (
    *(
        f"{name}.{overload}"
        for name in (*_COMPARISONS, *_LOGICAL)
        for overload in ("Tensor", "Scalar", "ScalarFirst")
    ),
    *("isfinite", "isinf", "isnan", "logical_not", "signbit", "all", "any", "nonzero"),
    *("argmax", "argmin", "argsort", "count_nonzero", "searchsorted"),
    *("searchsorted.Scalar", "isin", "isin.Scalar", "isin.ScalarFirst"),
    *("linalg_matrix_rank", "linalg_matrix_rank.Tensor"),
    *("empty_like", "full_like", "ones_like", "zeros_like"),
)
"""Operators whose results never require gradients: not differentiable, or independent of the
argument values. Autograd records no node for them."""
