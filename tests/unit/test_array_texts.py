"""Arrays of texts and of objects: no operator takes them, wherever they are among its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opdispatch.array_library  # noqa: F401
from opdispatch import ArgumentError, Tensor, ops
from opdispatch.native.array.operators.functions import FUNCTIONS, ArrayFunction

GIVEN: dict[str, Any] = {
    "Scalar": 1.0,
    "ScalarType": "float32",
    "int": 0,
    "bool": True,
    "int[1]": [2],
    "int[]": [2],
    "int[][]": [[0], [0]],
}


def _calls(function: ArrayFunction, bad: np.ndarray) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The arguments of one call for each that has tensors, which ``bad`` is given for."""
    arguments = function.schema.arguments
    for wrong in (each for each in arguments if each.type.dispatches):
        args, kwargs = [], {}
        for each in arguments:
            if each.type.dispatches:
                value: Any = bad if each is wrong else np.ones(2)
                value = [value, value] if str(each.type) == "Tensor[]" else value
            elif not each.has_default:
                value = GIVEN[str(each.type)]
            else:
                continue
            if each.kwarg_only:
                kwargs[each.name] = value
            else:
                args.append(value)
        yield args, kwargs


@pytest.mark.parametrize("bad", [np.array(["1", "2"]), np.array([1, 2], object)], ids=str)
def test_no_operator_takes_them(bad: np.ndarray):
    for function in FUNCTIONS:
        name, _, overload = function.operator.partition(".")
        operator = getattr(getattr(ops.array, name), overload or "default")
        for args, kwargs in _calls(function, bad):
            with pytest.raises(ArgumentError, match=r"does not take arrays of .*; it takes bool, "):
                operator(*args, **kwargs)


def test_nor_does_a_list_that_has_tensors_in_it():
    mixed = [Tensor(np.ones(2)), np.array(["1", "2"])]
    for operator in ("concat", "stack", "meshgrid", "broadcast_arrays"):
        with pytest.raises(ArgumentError, match="does not take arrays of <U1"):
            getattr(ops.array, operator)(mixed)
