"""Generated kernel libraries whose answers tell which version gave them."""

from __future__ import annotations

from typing import Any

import numpy as np

_TEXT = '''\
"""Version {stamp} of {namespace}."""

from opdispatch import Library

STAMP = {stamp}
library = Library("{namespace}", "DEF")
library.define("shift(Tensor x, *, int scale=1) -> (Tensor shifted, int stamp)")


def shift(x, *, scale=1):
    """Multiplies by scale and adds the version's stamp."""
    return x * scale + STAMP, STAMP


library.impl("shift", shift, "CPU")
'''


def library_text(namespace: str, stamp: int) -> str:
    """The source of the library's version `stamp`; it defines ``NAMESPACE::shift``."""
    return _TEXT.format(namespace=namespace, stamp=stamp)


def check_answer(argument: np.ndarray[Any, Any], scale: int, answer: Any) -> int:
    """The stamp of the version that gave the answer to ``shift(argument, scale=scale)``.

    Raises ValueError if no version gives that answer.
    """
    match answer:
        case (np.ndarray() as shifted, int() as stamp):
            expected = argument * scale + stamp
            if shifted.dtype == expected.dtype and np.array_equal(shifted, expected):
                return stamp
            raise ValueError(f"version {stamp} answered {shifted!r} instead of {expected!r}")
    raise ValueError(f"expected a tensor and an int, and got {answer!r}")
