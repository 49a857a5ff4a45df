"""The operators without derivatives: those whose results are constant, and those that have none."""

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
"""Their results are no numbers with gradients, or do not depend on what is given: calls leave
nothing behind, whatever requires gradients."""

NO_DERIVATIVE = {
    **{
        f"{name}.{overload}": "of integers and truth values"
        for name in (
            *("bitwise_and", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift"),
            "bitwise_xor",
        )
        for overload in ("Tensor", "Scalar", "ScalarFirst")
    },
    "bitwise_invert": "of integers and truth values",
    **{
        f"nextafter.{overload}": "PyTorch has none"
        for overload in ("Tensor", "Scalar", "ScalarFirst")
    },
    **{f"unique_{name}": "PyTorch has none" for name in ("all", "counts", "inverse", "values")},
}
"""Of tensors: the way back ends there in an error that names them."""
