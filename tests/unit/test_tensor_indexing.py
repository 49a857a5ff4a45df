"""x[index] and x[index] = value, through the operators behind them, against NumPy's own."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import opdispatch.array_library  # noqa: F401
from opdispatch import ArgumentError, Tensor, capture_dispatch_trace, ops
from opdispatch import array_api as xp
from opdispatch.func import functionalize, vmap

SHAPE = (3, 4, 2)


def elements():
    return np.arange(24.0).reshape(SHAPE)


MASK = elements() > 5
ROWS = np.array([[0, 2], [1, 1]])

INDICES = [
    *(1, -1, (2, 3, 1), slice(1, None), (slice(None, None, -1), 0), ...),
    *((..., 0), (1, ...), (None, 1), (..., None), (slice(0, 2), None, ..., 1)),
    *(MASK, MASK[:, 0, 0], (slice(None), MASK[0, :, 0]), (0, MASK[0])),
    *(ROWS, (ROWS, 1, 0), (ROWS, slice(None), ROWS % 2), (slice(1, 3), ROWS, None)),
    *((None, slice(1, 3), ROWS, ..., 1), (slice(None), 1, ..., ROWS % 2), (slice(None), ROWS, ...)),
    *((slice(None), None, [1, 2], ..., [0, 1]), (slice(None), MASK[0, :, 0], ..., 1)),
    *((None, slice(None), np.array(1), ..., 0), (slice(None, None, -2), ROWS, ..., ROWS % 2)),
    *([0, 2], [], (0, [1, 1]), np.int64(2), (np.array(1), 0), True, (slice(3, 1),)),
]


def names(index):
    return str(index).replace("\n", "")


def with_tensors(index):
    if isinstance(index, tuple):
        return tuple(map(with_tensors, index))
    return Tensor(index) if isinstance(index, np.ndarray) else index


def without_elements(x):
    return xp.zeros(x.shape, dtype=x.dtype, device="meta")


@pytest.mark.parametrize("index", INDICES, ids=names)
def test_getitem_selects_as_numpy_does(index):
    selected = Tensor(elements())[with_tensors(index)]
    assert type(selected) is Tensor
    np.testing.assert_array_equal(selected.array, elements()[index], strict=True)


@pytest.mark.parametrize("index", INDICES, ids=names)
def test_setitem_writes_as_numpy_does(index):
    for value in (7.0, np.float32(-1), np.array(5.0)):
        ours, theirs = Tensor(elements()), elements()
        ours[with_tensors(index)] = value
        theirs[index] = value
        np.testing.assert_array_equal(ours.array, theirs)


@given(data=st.data(), x=npst.arrays(np.int8, npst.array_shapes(max_dims=4)))
def test_basic_indices_are_views(data, x):
    index = data.draw(npst.basic_indices(x.shape, allow_newaxis=True))
    selected = Tensor(x)[index]
    np.testing.assert_array_equal(selected.array, x[index])
    selected[...] = 3
    assert np.all(x[index] == 3)
    assert without_elements(Tensor(x))[index].shape == selected.shape


@given(data=st.data(), shape=npst.array_shapes(min_dims=1, max_dims=4))
def test_arrays_of_integers_select_the_same_shapes_without_elements(data, shape):
    x = np.zeros(shape)
    taken = data.draw(st.integers(1, len(shape)))
    arrays = npst.integer_array_indices(shape[:taken], result_shape=npst.array_shapes(max_dims=2))
    entries = [
        entry if data.draw(st.booleans()) else data.draw(st.sampled_from([0, slice(None)]))
        for entry in data.draw(arrays)
    ]
    index = tuple(entries)
    assert without_elements(Tensor(x))[index].shape == x[index].shape


def test_setitem_of_empty_tensor_does_nothing():
    x = Tensor(np.zeros((2, 0)) + 1)
    x[...] = 1.0
    x += 1.0
    assert x.shape == (2, 0)


def test_one_operator_is_called_for_an_index():
    x = Tensor(elements())
    with capture_dispatch_trace() as lines:
        x[1:, None, 0]
        x[Tensor(MASK)]
        x[0] = 1.0
        x[0] = Tensor(np.ones(2))
    called = list(dict.fromkeys(str(line.operator) for line in lines))
    assert called == [
        *("array::getitem", "array::getitem.Tensor"),
        *("array::setitem_.Scalar", "array::setitem_.Tensor"),
    ]


def test_a_selected_number_can_be_written_to():
    x = Tensor(elements())
    x[0, 0, 0][...] = 9.0
    assert x[0, 0, 0].item() == 9.0


def test_rows_one_after_the_other():
    assert [row.shape for row in Tensor(elements())] == [(4, 2)] * 3
    with pytest.raises(TypeError, match="0-d"):
        iter(Tensor(np.float64(1)))


def test_plain_arrays_stay_plain():
    x = elements()
    assert type(ops.array.getitem(x, [0], [None], [None])) is np.ndarray
    assert ops.array.setitem_(x, [0], [None], [None], [], 1.0) is x


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ((0, 0, 0, 0), IndexError),
        (3, IndexError),
        ((..., ...), IndexError),
        (np.array([0.5]), IndexError),
        (MASK[:2], IndexError),
        (slice(None, None, 0), ValueError),
        ("rows", IndexError),
    ],
    ids=names,
)
def test_invalid_index_raises_as_numpy_does(index, error):
    x = Tensor(elements())
    with pytest.raises(error):
        x[index]
    with pytest.raises(error):
        x[index] = 0.0
    np.testing.assert_array_equal(x.array, elements())


def test_values_that_do_not_fit_are_named_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(5,?\).*\(4,2\)"):
        Tensor(elements())[0] = np.ones(5)
    with pytest.raises(ArgumentError, match=r"\[4, 2\].*\[5\]"):
        without_elements(Tensor(elements()))[0] = xp.zeros(5, device="meta")


def test_masks_have_no_shape_without_elements():
    with pytest.raises(ArgumentError, match="takes integer indices on meta, not bool"):
        without_elements(Tensor(elements()))[Tensor(MASK)]


def test_entries_that_contradict_each_other_are_refused():
    with pytest.raises(ArgumentError, match="1 starts, 0 stops"):
        ops.array.getitem(elements(), [0], [], [None])
    with pytest.raises(ArgumentError, match="2 indices"):
        ops.array.getitem(elements(), [None], [None], [None], [ROWS, ROWS])


@st.composite
def indices(draw, shape):
    """Entries of all kinds for the first axes, and for the last ones behind an ellipsis."""
    joint = draw(npst.array_shapes(min_dims=0, max_dims=2, max_side=2))

    def entries_for(extents):
        for extent in extents:
            if draw(st.booleans()) and draw(st.booleans()):
                yield None
            kind = draw(st.sampled_from(["slice", "number", "array", "array", "mask"]))
            places = st.integers(-extent, extent - 1)
            if kind == "slice":
                yield draw(st.slices(extent))
            elif kind == "number":
                yield draw(places)
            elif kind == "array" or len(joint) != 1 or joint[0] > extent:
                yield draw(npst.arrays(np.int64, joint, elements=places))
            else:
                yield np.isin(np.arange(extent), draw(st.permutations(range(extent)))[: joint[0]])

    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    entries = list(entries_for(shape[:first]))
    if draw(st.integers(0, 3)):
        entries += [..., *entries_for(shape[last:])]
    return tuple(entries)


@given(data=st.data(), shape=npst.array_shapes(min_dims=1, max_dims=4, max_side=3))
def test_an_index_of_all_kinds_of_entries_is_numpys(data, shape):
    index = data.draw(indices(shape))
    x = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    selected = Tensor(x)[with_tensors(index)]
    np.testing.assert_array_equal(selected.array, x[index], strict=True)
    values = np.arange(100.0, 100.0 + selected.size).reshape(selected.shape)
    ours, theirs = Tensor(x.copy()), x.copy()
    ours[with_tensors(index)] = values
    theirs[index] = values
    np.testing.assert_array_equal(ours.array, theirs)
    if not any(hasattr(entry, "dtype") and entry.dtype == np.bool for entry in index):
        assert without_elements(Tensor(x))[index].shape == selected.shape


AROUND_ELLIPSIS = (None, slice(1, 3), np.array([0, 3, 3]), ..., np.array([1, 0, 0]))


def test_arrays_around_an_ellipsis_that_is_none_have_gradients():
    x, weights = Tensor(elements(), requires_grad=True), np.arange(6.0).reshape(3, 1, 2)
    xp.sum(x[AROUND_ELLIPSIS] * weights).backward()
    expected = np.zeros(SHAPE)
    np.add.at(expected, AROUND_ELLIPSIS, weights)
    np.testing.assert_array_equal(x.grad.array, expected)
    value = Tensor(weights, requires_grad=True)
    y = Tensor(elements()) * 1.0
    y[(None, slice(1, 3), np.array([0, 1, 3]), ..., 1)] = value
    xp.sum(y * y).backward()
    np.testing.assert_array_equal(value.grad.array, 2 * weights)


def test_arrays_around_an_ellipsis_that_is_none_mean_the_same_to_functionalize_and_vmap():
    def written(x):
        y = x + 0.0
        y[AROUND_ELLIPSIS] = xp.reshape(xp.arange(6.0), (3, 1, 2))
        return y[AROUND_ELLIPSIS]

    expected = elements()
    expected[AROUND_ELLIPSIS] = np.arange(6.0).reshape(3, 1, 2)
    found = functionalize(written)(Tensor(elements()))
    np.testing.assert_array_equal(found.array, expected[AROUND_ELLIPSIS])
    batch = np.stack([elements(), elements() + 100])
    found = vmap(lambda x: x[AROUND_ELLIPSIS])(Tensor(batch))
    np.testing.assert_array_equal(found.array, np.stack([x[AROUND_ELLIPSIS] for x in batch]))


def test_a_mask_without_dimensions_or_of_other_extents_is_refused_there():
    with pytest.raises(IndexError, match=r"a mask of shape \[5\] does not fit .* extents \[4\]"):
        Tensor(elements())[:, np.zeros(5, bool), ..., 1]
    with pytest.raises(
        IndexError, match="a zero-dimensional mask cannot be combined with an ellipsis"
    ):
        Tensor(elements())[:, ROWS, ..., 0, True]
