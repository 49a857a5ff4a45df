"""``x[index]`` by the generated function, against the one for any index."""

import sys

import numpy as np
import pytest

from opdispatch import Tensor
from opdispatch.array_api.subscript import make_getitem
from opdispatch.tensors import indexing

USUAL = [
    *(0, -1, slice(1, None), slice(None, None, -1), slice(None, 2, 2), ()),
    *((0, 1), (slice(1, 2), 0), (None, slice(None)), (1, None, slice(None, None, -2)), (None, -1)),
    np.array([[0, 2], [1, 1]]),
]
OTHERS = [
    *(..., (..., 0), None, True, np.int64(1), (np.int64(1), slice(None)), [0, 1], (0, [1, 0])),
    *(slice(np.int64(1), None), (slice(None, np.int64(2)),), 2**40, (0, 2**40), 2**70, 3, (0, 9)),
    *(slice(-(2**70), 2**70), slice(None, None, 0), slice(0, 1, 2**70), "a", 0.5, (0, 0, 0)),
    *((slice(None, None, 0), 0), (slice("a", None),), (slice(None, 0.5),), slice(0, 1, 1.5)),
]


def outcome(function, index):
    try:
        made = function(Tensor(np.arange(12.0).reshape(3, 4)), index)
    except Exception as error:
        return type(error), str(error)
    return made.array.tolist(), made.array.strides, made._is_view()


@pytest.mark.parametrize("index", [*USUAL, *OTHERS], ids=str)
def test_generated_getitem_equals_general_getitem(index):
    assert outcome(make_getitem(), index) == outcome(indexing.getitem, index)


@pytest.mark.parametrize("index", USUAL, ids=str)
def test_usual_indices_do_not_enter_the_function_for_any_index(index):
    function, entered = make_getitem(), []
    outcome(function, index)  # the first call learns
    outer = sys.getprofile()
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code))
    try:
        outcome(function, index)
    finally:
        sys.setprofile(outer)
    assert indexing.getitem.__code__ not in entered
