"""The extension ``linalg``: linear algebra."""

from __future__ import annotations

from opdispatch.array_api.functions import make_functions
from opdispatch.native.array.operators.functions import FUNCTIONS

# The standard defines these functions both here and in the main namespace.
_SHARED = ("matmul", "matrix_transpose", "tensordot", "vecdot")
_made = {
    name.removeprefix("linalg_"): function
    for name, function in make_functions(
        [each.schema for each in FUNCTIONS if each.path[0] in ("linalg", *_SHARED)], __name__
    ).items()
}
globals().update(_made)
__all__ = sorted(_made)


def __dir__() -> list[str]:
    return __all__
