"""The extension ``fft``: Fourier transforms."""

from __future__ import annotations

from opdispatch.array_api.functions import make_functions
from opdispatch.native.array.operators.functions import FUNCTIONS

_made = {
    name.removeprefix("fft_"): function
    for name, function in make_functions(
        [each.schema for each in FUNCTIONS if each.path[0] == "fft"], __name__
    ).items()
}
globals().update(_made)
__all__ = sorted(_made)


def __dir__() -> list[str]:
    return __all__
