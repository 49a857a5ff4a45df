"""Shapes and dtypes of the library ``array``, against those of NumPy's results."""

import itertools
import math
import tracemalloc
import warnings
from dataclasses import dataclass

import array_api_compat.numpy as xp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.errors import ArgumentError
from opdispatch.native.array.operators.functions import BINARY, FUNCTIONS, UNARY
from opdispatch.native.array.operators.library_functions import find_function
from opdispatch.native.array.operators.meta_kernels import META_FUNCTIONS

NUMPY_FUNCTIONS = {each.operator: find_function(xp, each) for each in FUNCTIONS}
DEPEND_ON_ELEMENTS = {
    *("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
    "repeat.Tensor",
}
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]
SHAPES = [(), (0,), (3,), (2, 3), (3, 2), (2, 0), (0, 0), (4, 1, 3), (2, 3, 3), (0, 2, 2)]
PAIRS = [
    *(((), ()), ((), (3,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (3, 2)), ((3, 2), (2,))),
    *(((4, 1, 3), (2, 1)), ((0, 3), (3,)), ((0,), (1,)), ((2, 3), (2,)), ((3, 3), (3, 2))),
    *(((2, 3, 3), (3,)), ((2, 3, 3), (4, 1, 3, 2)), ((2, 3, 3), (5, 3, 3)), ((0, 2, 2), (2, 1))),
    *(((3,), (2, 3, 3)), ((2, 0), (0, 4)), ((1,), (0,)), ((3, 1), (3, 4)), ((0, 0), (0,))),
]


@dataclass(frozen=True)
class Of:
    """An array of a call: its dtype is the first or the second of the pair tried."""

    shape: tuple[int, ...]
    dtype: int | str = 0


def arrays(*shapes, **keywords):
    """A call with arrays of those shapes, of one dtype each."""
    return tuple(Of(shape, place) for place, shape in enumerate(shapes)), keywords


def each_shape(**choices):
    """Call with every shape, and every combination of the keywords' choices."""
    combinations = [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]
    return [arrays(shape, **keywords) for shape in SHAPES for keywords in combinations]


def each_pair(**choices):
    """As ``each_shape``, with every pair of shapes."""
    combinations = [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]
    return [arrays(*pair, **keywords) for pair in PAIRS for keywords in combinations]


def with_each_shape(*others):
    """Call with every shape, and with each of the second arguments."""
    return [((Of(shape), other), {}) for shape in SHAPES for other in others]


AXIS = [0, -1, 1, -3, 5]
AXES = [None, 0, -1, 2, 5, (), (0,), (-1, 0), (0, 0), (1, 7)]
DTYPE = [None, np.dtype("int8"), np.dtype("complex64")]
OF_SQUARE = ["det", "eig", "eigh", "eigvals", "eigvalsh", "inv", "slogdet", "svdvals"]
SCALARS = [True, 2, 300, 1.5, 2j]
KEEP = [False, True]
NEW = {"dtype": [None, np.dtype("float32"), np.dtype("int8")]}
LISTS = [
    [],
    [Of(())],
    [Of(()), Of((), 1)],
    [Of((3,)), Of((3,), 1)],
    [Of((3,)), Of((2,), 1), Of((4,), "float32")],
    [Of((2, 3)), Of((4, 3), 1)],
    [Of((2, 3)), Of((2, 0), 1)],
    [Of((2, 3)), Of((3,), 1)],
    [Of((2, 3)), Of((2, 3), 1), Of((2, 3))],
    [Of((2, 1)), Of((1, 3), 1)],
]
INDEX = [Of((), "int64"), Of((0,), "int64"), Of((2, 2), "uint16"), Of((2,), "float32")]


def every(*arguments, **choices):
    """Call with those arguments, and every combination of the keywords' choices."""
    return [
        (arguments, dict(zip(choices, values, strict=True)))
        for values in itertools.product(*choices.values())
    ]


def of_several(**choices):
    return [call for listed in LISTS for call in every(listed, **choices)]


CALLS = {
    **{name: each_shape() for name in UNARY},
    **{f"{name}.Tensor": each_pair() for name in BINARY},
    **{f"{name}.Scalar": with_each_shape(*SCALARS) for name in BINARY},
    **{
        f"{name}.ScalarFirst": [((scalar, Of(shape)), {}) for shape in SHAPES for scalar in SCALARS]
        for name in BINARY
    },
    **{
        name: each_shape(axis=AXES, keepdims=KEEP)
        for name in ["all", "any", "count_nonzero", "max", "mean", "min", "std", "var"]
    },
    **{name: each_shape(axis=AXES, keepdims=KEEP, dtype=DTYPE) for name in ("sum", "prod")},
    **{name: each_shape(axis=[None, *AXIS], keepdims=KEEP) for name in ("argmax", "argmin")},
    **{
        name: each_shape(axis=[None, *AXIS], dtype=DTYPE, include_initial=KEEP)
        for name in ("cumulative_sum", "cumulative_prod")
    },
    **{name: each_shape(axis=AXIS, descending=KEEP) for name in ("sort", "argsort")},
    "searchsorted": [
        *each_pair(side=["left", "right", "middle"]),
        *every(Of((3,)), Of((2, 2)), side=["left"], sorter=[Of((3,), "int64"), Of((2,), "int64")]),
        *every(Of((3,)), Of((2, 2)), side=["left"], sorter=[Of((3,), "float32")]),
    ],
    "searchsorted.Scalar": with_each_shape(*SCALARS),
    "isin": each_pair(invert=KEEP),
    "isin.Scalar": with_each_shape(*SCALARS),
    "isin.ScalarFirst": [((scalar, Of(shape)), {}) for shape in SHAPES for scalar in SCALARS],
    "diff": [
        *each_shape(axis=AXIS, n=[0, 1, 2, 5, -1]),
        *each_shape(axis=[-1], n=[0, 1], prepend=[Of((), 1), Of((2, 1), 1), Of((3,), 1)]),
        *each_shape(axis=[0, -1], prepend=[Of((), 1)], append=[Of((4, 3), "float32"), None]),
    ],
    **{
        name: [((shape,), keywords) for shape in [3, 0, (), (2, 3)] for _, keywords in every(**NEW)]
        for name in ("empty", "ones", "zeros")
    },
    **{name: each_shape(**NEW) for name in ("empty_like", "ones_like", "zeros_like")},
    "full": [call for value in SCALARS for call in every((2, 3), value, **NEW)],
    "full_like": [
        call
        for shape, value in itertools.product(SHAPES, SCALARS)
        for call in every(Of(shape), value, **NEW)
    ],
    "arange": [
        call
        for limits in [
            *((3,), (3.5,), (True,), (0, 10, 3), (0, 1, 0.1), (5, 0), (0, 5, -1), (0, 5, 0)),
            *((2**63, 2**63 + 5), (2**70,), (0, math.inf), (0, math.nan), (0.0, 5, 2), (-3,)),
            *((1, 9, 2.5), (5, -5, -3), (2,)),
        ]
        for call in every(*limits, dtype=[None, np.dtype("int8"), np.dtype("bool")])
    ],
    "linspace": [
        call
        for limits in [(0, 1, 5), (0.5, 2j, 4), (True, False, 0), (1, 2, 1), (0, 1, -1)]
        for call in every(*limits, dtype=DTYPE, endpoint=KEEP)
    ],
    "eye": [
        call
        for extents in [(3,), (3, None), (2, 4), (0,), (-1,)]
        for call in every(*extents, k=[0, 1], **NEW)
    ],
    **{
        name: [call for n in (1, 4, 5, 0) for call in every(n, d=[1.0, 0.5, 0.0], **NEW)]
        for name in ("fft_fftfreq", "fft_rfftfreq")
    },
    "clip": [((Of(shape), *limits), {}) for shape in SHAPES for limits in [(), (0, 1), (None, 1)]],
    "clip.Tensor": [
        *(((Of(one), Of(other)), {}) for one, other in PAIRS),
        *(((Of(shape), None, Of((3,))), {}) for shape in SHAPES),
        ((Of((2, 3)), Of((3,)), Of((4, 1, 1))), {}),
    ],
    "clip.ScalarMin": [((Of(one), 0, Of(other)), {}) for one, other in PAIRS],
    "clip.ScalarMax": [((Of(one), Of(other), 1), {}) for one, other in PAIRS],
    "where": [((Of(one, "bool"), Of(one), Of(other, 1)), {}) for one, other in PAIRS],
    "where.ScalarSelf": [
        ((Of(one, "bool"), scalar, Of(other)), {}) for one, other in PAIRS for scalar in SCALARS
    ],
    "where.ScalarOther": [
        ((Of(one, "bool"), Of(other), scalar), {}) for one, other in PAIRS for scalar in SCALARS
    ],
    "astype": with_each_shape(np.dtype("float32"), np.dtype("bool")),
    "meshgrid": of_several(indexing=["xy", "ij", "yx"]),
    "broadcast_arrays": of_several(),
    "concat": of_several(axis=[None, *AXIS]),
    "stack": of_several(axis=AXIS),
    **{name: each_shape(k=[0, -1, 2]) for name in ("tril", "triu")},
    "broadcast_to": with_each_shape(3, 1, (), (2, 3), (4, 4, 3), (0,), (5, 2, 3, 3)),
    "take": [
        call
        for shape, indices in itertools.product(SHAPES, INDEX)
        for call in every(Of(shape), indices, axis=[None, *AXIS])
    ],
    "take_along_axis": [
        call
        for shape, indices in itertools.product(
            SHAPES, [*INDEX, Of((4, 3), "int64"), Of((2, 1, 1), "int8"), Of((3,), "bool")]
        )
        for call in every(Of(shape), indices, axis=AXIS)
    ],
    "unstack": each_shape(axis=AXIS),
    "expand_dims": each_shape(axis=[*AXIS, (0, 1), (-1, 0), (0, -5), (1, 1), ()]),
    "squeeze": [
        *with_each_shape(0, 1, -2, (), (0,), (1,), (0, 1), (1, 1)),
        ((Of((1, 3, 1)), (0, 2)), {}),
        ((Of((1, 3, 1)), -1), {}),
    ],
    "flip": each_shape(axis=AXES),
    "roll": [
        call
        for shape, shift in itertools.product(SHAPES, [1, (1, 2), (1, 2, 3)])
        for call in every(Of(shape), shift, axis=[None, 0, -1, 3, (0, 0), (0,), (0, 1)])
    ],
    "moveaxis": [
        ((Of(shape), *axes), {})
        for shape in [*SHAPES, (2, 3, 4)]
        for axes in [(0, 1), (0, -1), ((0, 1), (2, 0)), ((), ()), ((0, 0), (0, 1)), ((0, 1), 0)]
    ],
    "permute_dims": [
        *with_each_shape((), (0,), (1, 0), (-1, 0), (0, 0), (2, 0, 1), (0, 1, 2, 3), (1, 5)),
        ((Of((2, 3, 4)), (2, 0, 1)), {}),
    ],
    "matrix_transpose": each_shape(),
    "repeat": [
        call
        for shape, repeats in itertools.product(SHAPES, [0, 1, 3, -1])
        for call in every(Of(shape), repeats, axis=[None, *AXIS])
    ],
    "tile": with_each_shape((), (2,), (0,), (2, 3), (2, 1, 1, 3)),
    "reshape": [
        ((Of(shape), wanted), {"copy": copy})
        for shape in SHAPES
        for wanted in [-1, 3, 6, (), (1,), (3, 2), (-1, 3), (0, 5), (0, -1), (-1, -1), (2, 0, -1)]
        for copy in [None, True]
    ],
    "matmul": each_pair(),
    "vecdot": each_pair(axis=[-1, -2, 0, 4]),
    "tensordot": each_pair(axes=[0, 1, 2, 3]),
    "tensordot.dims": [
        call
        for pair in [*PAIRS, ((2, 3, 4), (4, 5, 2))]
        for call in every(
            Of(pair[0]),
            Of(pair[1], 1),
            axes=[
                ([], []),
                ([0], [0]),
                ([-1], [0]),
                ([0, 2], [2, 0]),
                ([0, 0], [0, 0]),
                ([9], [0]),
            ],
        )
    ],
    **{f"linalg_{name}": each_shape() for name in OF_SQUARE},
    "linalg_cholesky": each_shape(upper=KEEP),
    "linalg_cross": [
        call
        for pair in [((3,), (3,)), ((2, 3), (3,)), ((3, 2), (3, 4, 1)), ((3, 0), (3, 1)), ((), ())]
        for call in every(Of(pair[0]), Of(pair[1], 1), axis=[-1, 0, 3])
        if call[1]["axis"] == 3 or pair[0] == () or pair[0][call[1]["axis"]] == 3
    ],
    "linalg_diagonal": each_shape(offset=[0, 1, -1, 9, -9]),
    "linalg_trace": each_shape(offset=[0, 1, -9], dtype=DTYPE),
    "linalg_matrix_norm": each_shape(keepdims=KEEP, ord=["fro", "nuc", None, "two"]),
    "linalg_matrix_norm.ord": each_shape(
        keepdims=KEEP, ord=[1, -1, 2, -2, math.inf, -math.inf, 1.0, 3]
    ),
    "linalg_matrix_power": with_each_shape(0, 1, 2, 5, -1, -3),
    "linalg_matrix_rank": each_shape(rtol=[None, 0.1]),
    "linalg_matrix_rank.Tensor": each_shape(
        rtol=[Of((), "float32"), Of((2,), "float64"), Of((5, 1), "float64")]
    ),
    "linalg_pinv": each_shape(rtol=[None, 0.1]),
    "linalg_pinv.Tensor": each_shape(rtol=[Of((), "float32"), Of((2,), "float64")]),
    "linalg_outer": each_pair(),
    "linalg_qr": each_shape(mode=["reduced", "complete", "sideways"]),
    "linalg_svd": each_shape(full_matrices=KEEP),
    "linalg_solve": each_pair(),
    "linalg_vector_norm": each_shape(
        axis=AXES, keepdims=KEEP, ord=[2, 0, 1, 3, -2.5, math.inf, -math.inf]
    ),
    **{
        f"fft_{name}": [
            *each_shape(n=[None, 1, 4, 5, 0], axis=AXIS),
            *each_shape(norm=["ortho", "forward", "sideways"]),
        ]
        for name in ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]
    },
    **{
        f"fft_{name}": each_shape(
            s=[None, (5,), (4, -1), (0,)], axes=[None, (), (0,), (-1, 0), (1,), (0, 0)]
        )
        for name in ["fftn", "ifftn", "rfftn", "irfftn"]
    },
    **{
        name: [call for call in each_shape(axes=AXES) if call[0][0].shape]
        for name in ("fft_fftshift", "fft_ifftshift")
    },
}


def dtype_of(spec, pair):
    return np.dtype(spec.dtype if isinstance(spec.dtype, str) else pair[spec.dtype])


def full_of_elements(spec, pair):
    """Identity matrices, so that inverses and factors exist; no index but 0."""
    dtype = dtype_of(spec, pair)
    if isinstance(spec.dtype, str) and dtype.kind in "iub":
        return np.zeros(spec.shape, dtype)
    if len(spec.shape) < 2:
        return np.ones(spec.shape, dtype)
    return np.broadcast_to(np.eye(*spec.shape[-2:], dtype=dtype), spec.shape).copy()


def without_elements(spec, pair):
    return MetaArray(spec.shape, dtype_of(spec, pair))


def put_arrays(value, make, pair):
    if isinstance(value, Of):
        return make(value, pair)
    if isinstance(value, list):
        return [put_arrays(each, make, pair) for each in value]
    return value


def has_second(call):
    arguments, keywords = call
    listed = [*arguments, *keywords.values()]
    listed += [each for value in listed if isinstance(value, list) for each in value]
    return any(isinstance(each, Of) and each.dtype == 1 for each in listed)


def has_first(call):
    return any(isinstance(each, Of | list) for each in [*call[0], *call[1].values()])


def outcome(function, call, make, pair, errors):
    """The shapes and dtypes of the results, or None where the function refuses."""
    arguments, keywords = call
    try:
        result = function(
            *(put_arrays(each, make, pair) for each in arguments),
            **{key: put_arrays(each, make, pair) for key, each in keywords.items()},
        )
    except errors:
        return None
    several = isinstance(result, list | tuple)
    found = result if several else [result]
    if make is without_elements:
        assert all(type(each) is MetaArray for each in found)
    found = [each if isinstance(each, MetaArray) else np.asarray(each) for each in found]
    return several, [(each.shape, each.dtype) for each in found]


META_ERRORS = (ArgumentError, OverflowError)
NUMPY_ERRORS = (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError)


def test_every_operator_has_a_function_and_no_other_is_there():
    assert set(META_FUNCTIONS) == {each.operator for each in FUNCTIONS}


def test_every_operator_is_tried():
    assert set(CALLS) == set(META_FUNCTIONS) - DEPEND_ON_ELEMENTS


@pytest.mark.parametrize("operator", sorted(CALLS))
def test_shapes_and_dtypes_are_those_of_numpy(operator):
    accepted = 0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for call in CALLS[operator]:
            seconds = DTYPES[::2] if has_second(call) else DTYPES[:1]
            for pair in itertools.product(DTYPES if has_first(call) else DTYPES[:1], seconds):
                expected = outcome(
                    NUMPY_FUNCTIONS[operator], call, full_of_elements, pair, NUMPY_ERRORS
                )
                found = outcome(META_FUNCTIONS[operator], call, without_elements, pair, META_ERRORS)
                assert found == expected, (call, pair)
                accepted += expected is not None
    assert accepted


@pytest.mark.parametrize("operator", sorted(DEPEND_ON_ELEMENTS))
def test_no_shape_is_foretold_that_depends_on_elements(operator):
    name = operator.partition(".")[0]
    array = MetaArray((3,), "int64")
    with pytest.raises(ArgumentError) as caught:
        META_FUNCTIONS[operator](*([array] * (2 if name == "repeat" else 1)))
    assert caught.value.message == (
        f"array::{name} has a result whose shape depends on the elements, "
        "and a meta tensor has none"
    )
    assert caught.value.facts == {"operator": name}


extents = st.integers(0, 3)
shapes = st.lists(extents, max_size=4).map(tuple)


@given(shapes, shapes, st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_two_arrays_broadcast_as_in_numpy(one, other, dtype, other_dtype):
    call = (Of(one), Of(other, 1)), {}
    pair = (dtype, other_dtype)
    expected = outcome(np.maximum, call, full_of_elements, pair, NUMPY_ERRORS)
    found = outcome(META_FUNCTIONS["maximum.Tensor"], call, without_elements, pair, ArgumentError)
    assert found == expected


@given(
    shapes,
    st.none() | st.integers(-5, 5) | st.lists(st.integers(-4, 4), max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from(["sum", "max", "mean", "all", "count_nonzero"]),
    st.sampled_from(DTYPES),
)
def test_axes_are_reduced_as_in_numpy(shape, axis, keepdims, operator, dtype):
    call = (Of(shape),), {"axis": axis, "keepdims": keepdims}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        expected = outcome(
            NUMPY_FUNCTIONS[operator], call, full_of_elements, (dtype,), NUMPY_ERRORS
        )
    found = outcome(META_FUNCTIONS[operator], call, without_elements, (dtype,), ArgumentError)
    assert found == expected


def meta(*shape, dtype="float32"):
    return MetaArray(shape, dtype)


def test_a_numpy_array_may_be_among_the_arguments():
    result = META_FUNCTIONS["add.Tensor"](meta(2, 3), np.ones(3))
    assert (result.shape, result.dtype) == ((2, 3), np.float64)


HUGE = (2**20, 2**20)
FACTORS = ["svd", "qr", "inv", "det", "pinv", "eig", "eigh", "matrix_norm"]


def test_no_memory_goes_into_a_huge_shape():
    huge, vector = meta(*HUGE), meta(2**20)
    calls = {
        **dict.fromkeys((*UNARY, *["sum", "max", "sort", "argmax", "std"]), (huge,)),
        **{f"{name}.Tensor": (huge, vector) for name in BINARY},
        **{f"linalg_{name}": (huge,) for name in FACTORS},
        **{f"linalg_{name}": (huge,) for name in ("vector_norm", "trace", "diagonal")},
        **{f"fft_{name}": (huge,) for name in ("fft", "irfftn", "fftshift")},
        **dict.fromkeys(("matmul", "tensordot", "vecdot", "linalg_solve"), (huge, huge)),
        **dict.fromkeys(("empty", "ones", "zeros"), (HUGE,)),
        **{name: ([huge, huge],) for name in ("concat", "stack", "broadcast_arrays")},
        "tensordot": (huge, huge),
        "full": (HUGE, 1),
        "arange": (2**50,),
        "linspace": (0, 1, 2**50),
        "eye": (2**30,),
        "reshape": (huge, (-1,)),
        "tile": (huge, (3, 3)),
        "broadcast_to": (vector, HUGE),
        "clip": (huge, 0, 1),
        "linalg_outer": (vector, vector),
        "take": (vector, meta(*HUGE, dtype="int64")),
    }
    tracemalloc.start()
    try:
        for operator, arguments in calls.items():
            try:
                META_FUNCTIONS[operator](*arguments)
            except ArgumentError as error:
                assert "is not defined for" in error.message  # noqa: PT017
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20
