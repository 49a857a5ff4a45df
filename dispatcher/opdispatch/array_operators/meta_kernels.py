"""What the operators return for arrays without elements: a shape and a dtype, nothing computed.

Both are those that NumPy's functions have. No memory is taken in proportion to the shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.array_operators.meta_elementwise import META_ELEMENTWISE
from opdispatch.array_operators.meta_fft import META_FFT
from opdispatch.array_operators.meta_linalg import META_LINALG
from opdispatch.array_operators.meta_manipulation import META_MANIPULATION
from opdispatch.array_operators.meta_reductions import META_REDUCTIONS

META_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **META_ELEMENTWISE,
    **META_REDUCTIONS,
    **META_MANIPULATION,
    **META_LINALG,
    **META_FFT,
}
"""By operator, overload by overload; each takes ``MetaArray`` for its tensors."""
