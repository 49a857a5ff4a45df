"""Generated kernel libraries whose results identify their version."""

from __future__ import annotations

from typing import Any

import numpy as np

_TEXT = '''\
"""Version {stamp} of {namespace}."""

from opdispatch import Library

STAMP = {stamp}
library = Library("{namespace}", "DEF")


def shift(x, *, scale=1):
    """Multiplies by scale and adds the version's stamp."""
    return x * scale + STAMP, STAMP


def shift_(x, *, scale=1):
    """The same, in place."""
    x *= scale
    x += STAMP
    return x, STAMP


for number in range({operators}):
    library.define(f"shift{{number}}(Tensor x, *, int scale=1) -> (Tensor shifted, int stamp)")
    library.impl(f"shift{{number}}", shift, "CPU")
library.define("shift_(Tensor(a!) x, *, int scale=1) -> (Tensor(a!) shifted, int stamp)")
library.impl("shift_", shift_, "CPU")
'''

MUTATING = "shift_"
"""The operator that writes to its argument: a call to it cannot be repeated."""


def library_text(namespace: str, stamp: int, operators: int = 1) -> str:
    """Return the source of the library's version `stamp`.

    It defines ``NAMESPACE::shift0`` to ``shiftN``, as many as `operators`, and
    ``NAMESPACE::shift_``, which writes to its argument.
    """
    return _TEXT.format(namespace=namespace, stamp=stamp, operators=operators)


def check_answer(argument: np.ndarray[Any, Any], scale: int, answer: Any) -> int:
    """Return the stamp of the version that computed ``shift0(argument, scale=scale)``.

    Raises ValueError if no version returns that result.
    """
    match answer:
        case (np.ndarray() as shifted, int() as stamp):
            expected = argument * scale + stamp
            if shifted.dtype == expected.dtype and np.array_equal(shifted, expected):
                return stamp
            raise ValueError(f"version {stamp} answered {shifted!r} instead of {expected!r}")
    raise ValueError(f"expected a tensor and an int, and got {answer!r}")
