"""Sizes, axes and counts that no array can have: a result or an ArgumentError, never NumPy's own.

None of them is one that some machine has the memory for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import opdispatch
from opdispatch import ArgumentError, Tensor
from opdispatch import array_api as xp
from opdispatch.native.array.operators.functions import FUNCTIONS, ArrayFunction

NUMBER, VECTOR, MATRIX = (Tensor(np.zeros(shape)) for shape in ((), (3,), (3, 3)))
LONG = Tensor(np.broadcast_to(np.float64(0), (2**59,)))

BEYOND = (2**62, 2**63 - 1, -(2**63))
"""As a size, more than there is room for in any address space, or less than none."""
AXES = (*BEYOND, 2**31, 2**32, 2**40, -(2**31) - 1, -(2**32))

# What the arrays are where a matrix would be refused for its shape, and what the extents are.
_ARRAYS = {"broadcast_to": NUMBER, "linalg_cross": VECTOR, "reshape": Tensor(np.zeros((0,)))}
_EXTENTS = {"reshape": lambda size: (size, 0), "broadcast_to": lambda size: (size, 4)}
_OTHERS = {"Scalar": 1, "ScalarType": np.dtype("float32"), "bool": False, "str": "xy"}


def given_sizes() -> Iterator[Any]:
    """Each operator with each of its arguments that are integers, to be given each size."""
    for function in FUNCTIONS:
        for argument in function.schema.arguments:
            if str(argument.type).startswith("int"):
                yield pytest.param(
                    function, argument.name, id=f"{function.operator}-{argument.name}"
                )


def call_with(function: ArrayFunction, name: str, size: int) -> Any:
    operator = getattr(opdispatch.ops.array, function.schema.name.name)
    operator = getattr(operator, function.schema.name.overload_name or "default")
    keywords: dict[str, Any] = {}
    for argument in function.schema.arguments:
        kind = str(argument.type)
        if argument.name == name:
            extents = _EXTENTS.get(function.operator, lambda size: (size,))
            nested = (extents(size),) * 2
            keywords[name] = {"int[][]": nested}.get(
                kind, size if kind in ("int", "int?") else extents(size)
            )
        elif kind == "Tensor":
            array = _ARRAYS.get(function.operator, MATRIX)
            is_index = argument.name in ("indices", "repeats")
            keywords[argument.name] = Tensor(np.ones((3,), int)) if is_index else array
            if function.operator == "take_along_axis" and is_index:
                keywords[argument.name] = Tensor(np.zeros((3, 3), int))
        elif kind == "Tensor[]":
            keywords[argument.name] = [MATRIX, MATRIX]
        elif not argument.has_default:
            keywords[argument.name] = 1 if kind.startswith("int") else _OTHERS[kind]
    return operator(**keywords)


@pytest.mark.parametrize(("function", "name"), list(given_sizes()))
def test_each_is_a_result_or_a_refusal(function: ArrayFunction, name: str):
    sizes = AXES if name in ("axis", "axes", "source", "destination") else BEYOND
    # A matrix of zeros has no inverse for negative powers.
    permitted = (ArgumentError, np.linalg.LinAlgError) if name == "n" else ArgumentError
    for size in sizes:
        with suppress(permitted):
            call_with(function, name, size)


REFUSED = {
    "zeros": lambda: xp.zeros((2**62, 4)),
    "ones": lambda: xp.ones((2**62, 4)),
    "full": lambda: xp.full((2**62, 4), 1.0),
    "empty": lambda: xp.empty((2**62, 4)),
    "zeros of a wide type": lambda: xp.zeros(2**60, dtype=xp.complex128),
    "zeros_like of a wider type": lambda: xp.zeros_like(LONG, dtype=xp.complex128),
    "no elements of too many": lambda: xp.zeros((2**62, 2**62, 0)),
    "less than no elements": lambda: xp.zeros(-1),
    "too many dimensions": lambda: xp.zeros((1,) * 65),
    "eye": lambda: xp.eye(2**40),
    "fftfreq": lambda: xp.fft.fftfreq(2**62),
    "fft": lambda: xp.fft.fft(VECTOR, n=2**62),
    "broadcast_to": lambda: xp.broadcast_to(NUMBER, (2**62, 4)),
    "broadcast_arrays": lambda: xp.broadcast_arrays(LONG[:, None], LONG),
    "broadcast_shapes": lambda: xp.broadcast_shapes((2**62, 1), (2**62,)),
    "expand_dims": lambda: xp.expand_dims(VECTOR, axis=2**40),
    "expand_dims to too many": lambda: xp.expand_dims(VECTOR, axis=tuple(range(64))),
    "moveaxis": lambda: xp.moveaxis(VECTOR, 2**40, 0),
    "permute_dims": lambda: xp.permute_dims(VECTOR, (2**32,)),  # NumPy takes it for axis 0
    "sum": lambda: xp.sum(VECTOR, axis=2**40),
    "outer": lambda: xp.linalg.outer(LONG, LONG),
    "meshgrid": lambda: xp.meshgrid(LONG, LONG),
    "concat": lambda: xp.concat([LONG] * 17),
    "stack": lambda: xp.stack([LONG] * 17),
    "stack in too many dimensions": lambda: xp.stack([xp.zeros((1,) * 64)] * 2),
    "matmul": lambda: xp.matmul(LONG[:, None], LONG[None]),
    "take": lambda: VECTOR[xp.broadcast_to(xp.asarray(0), (2**60,))],
    "add": lambda: LONG[:, None] + LONG,
    "tile": lambda: xp.tile(VECTOR, (-1,)),
    "linspace": lambda: xp.linspace(0, 1, -1),
    "arange": lambda: xp.arange(0.0, float("nan")),
    "diff": lambda: xp.diff(VECTOR, n=-1),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_impossible_sizes_raise_argument_error(call: Any):
    with pytest.raises(ArgumentError, match=r"^array::"):
        call()


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, deep: xp.meshgrid(*[x] * 65),
        lambda x, deep: xp.stack([deep, deep]),
        lambda x, deep: xp.expand_dims(deep, axis=0),
        lambda x, deep: xp.broadcast_to(x, (1,) * 65),
        lambda x, deep: xp.zeros((1,) * 65, device=x.device),
        lambda x, deep: xp.tensordot(x, deep, axes=0),
        lambda x, deep: deep[None],
    ],
)
def test_no_array_has_more_than_64_dimensions(device: str, call: Any):
    x, deep = xp.zeros(1, device=device), xp.zeros((1,) * 64, device=device)
    with pytest.raises(ArgumentError, match="64") as caught:
        call(x, deep)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "call",
    [
        lambda x, deep: xp.meshgrid(*[x] * 33),
        lambda x, deep: xp.meshgrid(*[x] * 33, indexing="ij"),
        lambda x, deep: xp.broadcast_arrays(x, deep),
        lambda x, deep: [xp.broadcast_shapes(x.shape, deep.shape)],
    ],
)
def test_error_names_numpys_lower_limit_of_dimensions(call: Any):
    """Arrays have twice as many since NumPy 2, and not all of its functions take those."""
    with suppress(RuntimeError):
        np.broadcast_shapes((1,) * 33)
        pytest.skip("this NumPy takes as many as its arrays have")
    with pytest.raises(ArgumentError, match=r"^array::.* only supports up to 32 dimensions .* 33"):
        call(xp.zeros(1), xp.zeros((1,) * 33))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (REFUSED["zeros"], r"^array::zeros of \[4611686018427387904, 4\]: array is too big"),
        (REFUSED["eye"], r"^array::eye with n_rows 1099511627776 and k 0: array is too big"),
        (REFUSED["fft"], r"^array::fft_fft of \[3\] with n 4611686018427387904 and axis -1: "),
        (REFUSED["fftfreq"], r"^array::fft_fftfreq with n 4611686018427387904: array is too big"),
        (REFUSED["moveaxis"], r"^array::moveaxis of \[3\] with source \[1099511627776\] and "),
        (REFUSED["arange"], r"^array::arange from 0.0 to nan by 1 has no length"),
        (lambda: xp.arange(0, float("-inf"), 0.5), r"^array::arange from 0 to -inf by 0.5 has no"),
        (lambda: xp.arange(0.0, 3.0, float("nan")), r"^array::arange from 0.0 to 3.0 by nan has"),
        (REFUSED["permute_dims"], r"^array::permute_dims was given axis 4294967296, which is out"),
    ],
)
def test_size_error_shows_the_given_value(call: Any, says: str):
    with pytest.raises(ArgumentError, match=says):
        call()


def test_other_wrong_integers_raise_numpys_errors():
    """Axes that another array has, shapes that do not fit, numbers for elements, and indices."""
    with pytest.raises(np.exceptions.AxisError):
        xp.expand_dims(VECTOR, axis=5)
    with pytest.raises(ValueError, match="cannot reshape array of size 3"):
        xp.reshape(VECTOR, (2**40,))
    with pytest.raises(OverflowError):
        xp.full((2,), 2**63, dtype=xp.int64)
    with pytest.raises(OverflowError):
        xp.ones(2, dtype=xp.int8) + 1000
    with pytest.raises(IndexError, match="out of bounds"):
        VECTOR[2**40]


def test_a_number_that_an_element_cannot_be_is_as_before_wherever_a_slice_ends():
    x = Tensor(np.zeros(3, np.uint8))
    for place in (slice(None), slice(0, sys.maxsize), slice(None, None, 2**40)):
        with pytest.raises(OverflowError, match="300, which is out of bounds for uint8"):
            x[place] = 300
        with pytest.raises(OverflowError, match="inf, which is out of bounds for uint8"):
            x[place] = float("inf")
    with pytest.raises(ArgumentError, match=r"^array::getitem of \[3\]: number of dimensions"):
        VECTOR[(None,) * 64]
