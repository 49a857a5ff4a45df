"""Autocast policies for the operators of the library ``array``, by device type.

The policies are PyTorch's for the equivalent operators. Where PyTorch composes an operator from
others, as ``tensordot`` on the CPU, the policy is the one that results from theirs. Operators that
are not listed are called with their arguments unchanged. Device types without a list have none in
PyTorch either; a backend registers policies for its own, as here.
"""

from __future__ import annotations

from collections.abc import Mapping

from opdispatch.functionalities.autocast import (
    Policy,
    fp32,
    fp32_set_opt_dtype,
    lower_precision_fp,
    make_autocast_kernel,
    promote,
)
from opdispatch.library.library import Library
from opdispatch.local_state.autocast_mode import autocast_key


def _by_operator(policies: Mapping[Policy, str]) -> dict[str, Policy]:
    return {name: policy for policy, names in policies.items() for name in names.split()}


_CPU = _by_operator(
    {
        lower_precision_fp: "matmul tensordot tensordot.dims vecdot",
        fp32: """
            fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft
            fft_fftn fft_ifftn fft_rfftn fft_irfftn
            linalg_cholesky linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv
            linalg_matrix_rank linalg_matrix_rank.Tensor linalg_qr linalg_solve linalg_svd
            linalg_svdvals linalg_trace prod
        """,
        promote: "concat stack",
    }
)

_CUDA = _by_operator(
    {
        lower_precision_fp: "matmul vecdot",
        fp32: """
            acos asin cosh exp expm1 linalg_matrix_norm linalg_matrix_norm.ord linalg_vector_norm
            log log10 log1p log2 pow.Tensor pow.Scalar pow.ScalarFirst reciprocal sinh square tan
        """,
        fp32_set_opt_dtype: "cumulative_prod cumulative_sum prod sum",
        promote: "atan2.Tensor tensordot tensordot.dims",
    }
)

POLICIES: dict[str, dict[str, Policy]] = {
    "cpu": _CPU,
    **dict.fromkeys(("cuda", "xpu", "mtia", "maia"), _CUDA),
    "mps": {name: policy for name, policy in _CUDA.items() if name != "vecdot"},
}
"""The policy of each operator overload that has one, by device type."""


def register_autocast_kernels(library: Library) -> None:
    """Register all policies with the library that defines the operators, in one publication."""
    with library.dispatcher.transaction():
        for device_type, policies in POLICIES.items():
            key = autocast_key(device_type)
            kernels = {p: make_autocast_kernel(p, device_type) for p in set(policies.values())}
            for name, policy in policies.items():
                library.impl(name, kernels[policy], key)
