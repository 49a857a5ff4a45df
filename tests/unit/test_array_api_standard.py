"""``opdispatch.array_api`` has what the standard asks for: names, signatures, devices."""

from __future__ import annotations

import array
import inspect
import itertools
import pickle
from typing import Any, get_type_hints

import numpy as np
import pytest

from opdispatch import ArgumentError, DeviceError, MetaArray, Tensor, ops
from opdispatch import array_api as xp
from opdispatch.array_api.data_types import DTYPES
from opdispatch.native.array.operators.functions import BINARY, UNARY

# https://data-apis.org/array-api/2025.12/API_specification. Of expand_dims, earlier revisions have
# the axis as a keyword with the default 0.
SIGNATURES = """
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
asarray(obj, /, *, dtype=None, device=None, copy=None)
astype(x, dtype, /, *, copy=True, device=None)
broadcast_arrays(*arrays)
broadcast_shapes(*shapes)
broadcast_to(x, /, shape)
can_cast(from_, to, /)
clip(x, /, min=None, max=None)
concat(arrays, /, *, axis=0)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
expand_dims(x, /, axis=(0,))
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
flip(x, /, *, axis=None)
from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
isdtype(dtype, kind)
isin(x1, x2, /, *, invert=False)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
meshgrid(*arrays, indexing='xy')
moveaxis(x, source, destination, /)
permute_dims(x, /, axes)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)
result_type(*arrays_and_dtypes)
roll(x, /, shift, *, axis=None)
searchsorted(x1, x2, /, *, side='left', sorter=None)
squeeze(x, /, axis)
stack(arrays, /, *, axis=0)
take(x, indices, /, *, axis=None)
take_along_axis(x, indices, /, *, axis=-1)
tile(x, repetitions, /)
unstack(x, /, *, axis=0)
where(condition, x1, x2, /)
linalg.cholesky(x, /, *, upper=False)
linalg.cross(x1, x2, /, *, axis=-1)
linalg.diagonal(x, /, *, offset=0)
linalg.matrix_norm(x, /, *, keepdims=False, ord='fro')
linalg.matrix_power(x, n, /)
linalg.qr(x, /, *, mode='reduced')
linalg.svd(x, /, *, full_matrices=True)
linalg.trace(x, /, *, offset=0, dtype=None)
linalg.vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
fft.fftfreq(n, /, *, d=1.0, dtype=None, device=None)
fft.rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
"""
# Those that several have.
SHARED = {
    "(x, /)": [
        *UNARY,
        *("matrix_transpose", "nonzero", "linalg.matrix_transpose"),
        *("unique_all", "unique_counts", "unique_inverse", "unique_values"),
        *(f"linalg.{name}" for name in ("det", "eig", "eigh", "eigvals", "eigvalsh")),
        *(f"linalg.{name}" for name in ("inv", "slogdet", "svdvals")),
    ],
    "(x1, x2, /)": [*BINARY, "matmul", "linalg.matmul", "linalg.outer", "linalg.solve"],
    "(type, /)": ["finfo", "iinfo"],
    "(x1, x2, /, *, axis=-1)": ["vecdot", "linalg.vecdot"],
    "(x1, x2, /, *, axes=2)": ["tensordot", "linalg.tensordot"],
    "(x, /, *, rtol=None)": ["linalg.matrix_rank", "linalg.pinv"],
    "(x, /, *, k=0)": ["tril", "triu"],
    "(x, /, *, axis=None, keepdims=False)": [
        *("all", "any", "argmax", "argmin", "count_nonzero", "max", "mean", "min"),
    ],
    "(x, /, *, axis=None, dtype=None, keepdims=False)": ["prod", "sum"],
    "(x, /, *, axis=None, correction=0.0, keepdims=False)": ["std", "var"],
    "(x, /, *, axis=None, dtype=None, include_initial=False)": [
        *("cumulative_prod", "cumulative_sum"),
    ],
    "(x, /, *, axis=-1, descending=False, stable=True)": ["argsort", "sort"],
    "(shape, *, dtype=None, device=None)": ["empty", "ones", "zeros"],
    "(x, /, *, dtype=None, device=None)": ["empty_like", "ones_like", "zeros_like"],
    "(x, /, *, n=None, axis=-1, norm='backward')": [
        f"fft.{name}" for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    ],
    "(x, /, *, s=None, axes=None, norm='backward')": [
        f"fft.{name}" for name in ("fftn", "ifftn", "rfftn", "irfftn")
    ],
    "(x, /, *, axes=None)": ["fft.fftshift", "fft.ifftshift"],
}
FUNCTIONS = {
    **{name: f"({rest}" for name, _, rest in (s.partition("(") for s in SIGNATURES.split("\n"))},
    **{name: signature for signature, names in SHARED.items() for name in names},
}
del FUNCTIONS[""]
CONSTANTS = {"e", "inf", "nan", "newaxis", "pi", "__array_api_version__"}

OPERATORS = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
    *("and", "or", "xor", "lshift", "rshift"),
]
METHODS = {
    **{
        f"__{kind}{name}__": "(other, /)"
        for name, kind in itertools.product(OPERATORS, ["", "r", "i"])
    },
    **{f"__{name}__": "(other, /)" for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{f"__{name}__": "()" for name in ("neg", "pos", "abs", "invert", "dlpack_device")},
    **{f"__{name}__": "()" for name in ("bool", "int", "float", "complex", "index")},
    "__array_namespace__": "(*, api_version=None)",
    "__dlpack__": "(*, stream=None, max_version=None, dl_device=None, copy=None)",
    "to_device": "(device, /, *, stream=None)",
}


def find(name: str) -> Any:
    extension, _, rest = name.rpartition(".")
    return getattr(getattr(xp, extension) if extension else xp, rest)


def signature_of(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


# -- names and signatures --------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_standards_signatures(name: str):
    assert signature_of(find(name)) == FUNCTIONS[name]


def test_asarray_says_what_class_arrays_have():
    """Generic code reads it: einx takes what a factory made for an array if it is one of these."""
    assert isinstance(xp.asarray([1.0]), get_type_hints(xp.asarray)["return"])


@pytest.mark.parametrize("name", METHODS)
def test_tensor_methods_have_the_signatures_of_the_standard(name: str):
    assert signature_of(getattr(xp.ones((2, 2)), name)) == METHODS[name]


def test_the_namespace_shows_the_standards_names_and_no_others():
    top = {name for name in FUNCTIONS if "." not in name}
    others = {*CONSTANTS, *DTYPES, "linalg", "fft", "__array_namespace_info__"}
    assert set(dir(xp)) == top | others
    for extension in ("linalg", "fft"):
        names = {name for name in FUNCTIONS if name.startswith(extension)}
        assert {f"{extension}.{name}" for name in dir(getattr(xp, extension))} == names


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_know_where_they_are(name: str):
    function = find(name)
    assert function.__name__ == name.rpartition(".")[2]
    assert function.__doc__
    assert pickle.loads(pickle.dumps(function)) is function


def test_methods_know_their_names():
    for name in METHODS:
        assert getattr(Tensor, name).__name__ == name


# -- values that are easily refused, or lost -------------------------------------------------------


def test_numbers_may_be_as_large_as_those_of_uint64():
    top = 2**64 - 1
    x = xp.full(2, top, dtype=xp.uint64)
    assert [int(each) for each in x] == [top, top]
    assert int((x - (top - 3))[0]) == int(xp.clip(x, 0, top)[1]) - (top - 3) == 3
    assert int(xp.arange(top - 2, top, dtype=xp.uint64)[1]) == top - 1
    assert int(xp.full_like(x, top)[0]) == top


@pytest.mark.parametrize(
    "view",
    [
        lambda x: xp.flip(xp.reshape(x, ())),
        lambda x: xp.broadcast_to(x, (1, 1, 1)),
        lambda x: xp.squeeze(xp.expand_dims(x, axis=0), axis=(0, 1, 2)),
        lambda x: xp.moveaxis(xp.permute_dims(x, (1, 0)), 0, 1)[0, 0],
    ],
)
def test_a_view_of_one_element_is_written_to(view):
    leaf = Tensor(np.ones((1, 1)), requires_grad=True)
    x = leaf * 2.0
    part = view(x)
    part += 1.0
    assert x.array.tolist() == [[3.0]]
    xp.sum(x * x).backward()
    assert leaf.grad.array.tolist() == [[12.0]]


def test_unstack_returns_views():
    for axis, shape in ((0, (3,)), (-1, (3,)), (1, (2, 3))):
        x = Tensor(np.zeros(shape))
        for number, each in enumerate(xp.unstack(x, axis=axis)):
            each += number
        assert x.array.reshape(-1, 3).tolist() == [[0, 1, 2]] * (x.size // 3)
    with pytest.raises(IndexError):
        xp.unstack(xp.ones(3), axis=1)


def test_results_that_are_not_views_by_schema_are_read_only():
    x = Tensor(np.ones(3))
    for shape in ((3,), (1, 1), (2, 3)):
        result = ops.array.broadcast_arrays([x, xp.zeros(shape)])[0]
        with pytest.raises((ValueError, ArgumentError), match=r"read-only|single memory location"):
            result += 1.0
    assert x.array.flags.writeable


def test_a_diagonal_is_a_view_that_is_written_to():
    x = Tensor(np.zeros((2, 3, 3)))
    above = xp.linalg.diagonal(x, offset=1)
    above += 1.0
    xp.linalg.diagonal(x)[0] = 5.0
    assert x.array.tolist() == [
        [[5.0, 1.0, 0.0], [0.0, 5.0, 1.0], [0.0, 0.0, 5.0]],
        [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]],
    ]
    fixed = np.zeros((3, 3))
    fixed.flags.writeable = False
    assert not xp.linalg.diagonal(Tensor(fixed)).array.flags.writeable


def test_a_diagonal_may_be_anywhere():
    x = xp.ones((2, 2))
    for far in (2**62, 2**63, 2**70):
        assert not xp.any(xp.eye(2, k=far))
        assert not xp.any(xp.eye(2, k=-far))
        assert not xp.any(xp.triu(x, k=far))
        assert xp.all(xp.tril(x, k=far) == x)


@pytest.mark.parametrize("make", [xp.asarray, np.asarray])
def test_one_limit_may_be_an_array_and_the_other_a_number(make: Any):
    x, one = make([1.0, 2.0, 3.0]), make([[1.5], [2.5]])
    for clip in (xp.clip, ops.array.clip):
        assert np.asarray(clip(x, one, 2.75)).tolist() == [[1.5, 2, 2.75], [2.5, 2.5, 2.75]]
        assert np.asarray(clip(x, 1.25, one)).tolist() == [[1.25, 1.5, 1.5], [1.25, 2, 2.5]]
    huge = xp.zeros((2**20, 2**20), device="meta")
    assert xp.clip(huge, 0.0, huge).shape == xp.clip(huge, huge, 0.0).shape == huge.shape


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype.kind in "iu"])
def test_counts_may_be_of_any_type_of_integers(dtype: Any):
    x, counts = xp.asarray([1, 2]), xp.asarray([0, 3], dtype=dtype)
    assert xp.repeat(x, counts).array.tolist() == [2, 2, 2]
    assert xp.take(x, counts[:1]).array.tolist() == [1]


def test_several_arrays_are_in_what_the_standard_says():
    x = xp.asarray([[1, 0], [2, 3]])
    for result in (xp.unstack(x), xp.nonzero(x)):
        assert type(result) is tuple
    for result in (xp.broadcast_arrays(x, x), xp.meshgrid(x[0], x[1])):
        assert type(result) is tuple
    assert xp.broadcast_arrays() == xp.meshgrid() == xp.broadcast_shapes() == ()
    assert type(xp.__array_namespace_info__().devices()) is tuple
    found = xp.unique_all(x)
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    assert pickle.loads(pickle.dumps(found)).counts.array.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_eigenvalues_of_any_matrix_are_complex(dtype):
    x = xp.asarray([[[0, 1], [-1, 0]], [[2, 0], [0, 3]]], dtype=np.dtype(dtype))
    found = xp.linalg.eig(x)
    assert found._fields == ("eigenvalues", "eigenvectors")
    values, vectors = found
    assert values.dtype == vectors.dtype == xp.linalg.eigvals(x).dtype
    assert values.dtype == np.result_type(dtype, np.complex64)
    np.testing.assert_allclose(x @ vectors, vectors * xp.expand_dims(values, -2), atol=1e-6)
    np.testing.assert_allclose(xp.linalg.eigvals(x), values)
    assert xp.linalg.eig(x[:0])[1].shape == (0, 2, 2)


def test_isin_compares_by_value():
    x = xp.asarray([[1, 2], [3, 2**62]])
    assert xp.isin(x, xp.asarray([2, 3], dtype=xp.int8)).array.tolist() == [[0, 1], [1, 0]]
    assert xp.isin(x, 2**62, invert=True).array.tolist() == [[1, 1], [1, 0]]
    assert xp.isin(2**62 - 1, x).array.tolist() is False
    assert xp.isin(xp.asarray([xp.nan, -0.0]), xp.asarray([xp.nan, 0.0])).array.tolist() == [0, 1]
    largest = xp.asarray([2**64 - 1, 0], dtype=xp.uint64)
    for number, expected in ((2**64 - 1, [1, 0]), (-1, [0, 0]), (2**63, [0, 0]), (0, [0, 1])):
        assert xp.isin(largest, number).array.tolist() == expected
    assert xp.isin(xp.zeros(2, dtype=xp.int8), 300).array.tolist() == [0, 0]
    with pytest.raises(ArgumentError, match="no common type"):
        xp.isin(x, 1.5)


def test_a_number_is_searched_as_an_array_of_it_is():
    for x in (xp.asarray([1, 3, 5]), xp.asarray([1.0, 3.0, 5.0])):
        for number in (0, 3, 3.5, 9):
            for side in ("left", "right"):
                found = xp.searchsorted(x, number, side=side)
                assert found.shape == ()
                assert int(found) == int(xp.searchsorted(x, xp.asarray([number]), side=side)[0])


def test_several_dimensions_are_added_where_the_result_has_them():
    x = xp.reshape(xp.arange(6), (2, 3))
    assert xp.expand_dims(x, (0, -1)).shape == (1, 2, 3, 1)
    assert xp.expand_dims(x, (3, 1)).shape == (2, 1, 3, 1)
    assert xp.expand_dims(x, ()).shape == (2, 3)
    for axes in ((0, 0), (0, -4), (4, 0)):
        with pytest.raises((ValueError, IndexError)):
            xp.expand_dims(x, axes)


def test_shapes_are_broadcast_without_arrays():
    assert xp.broadcast_shapes((2, 1), (3,), ()) == (2, 3)
    assert xp.broadcast_shapes((0, 1), (1, 4)) == (0, 4)
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        xp.broadcast_shapes((2,), (3,))


def test_a_tensor_without_dimensions_has_nothing_to_go_through():
    assert [float(each) for each in xp.asarray([1.0, 2.0])] == [1.0, 2.0]
    assert [each.shape for each in xp.ones((0, 3))] == []
    with pytest.raises(TypeError, match=r"len\(\) of a 0-d tensor"):
        len(xp.asarray(1))
    for ask in (iter, list, set):
        with pytest.raises(TypeError, match="iteration over a 0-d tensor"):
            ask(xp.asarray(1))


# -- memory and devices ----------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_new_arrays_are_on_the_device_of_another(device: str):
    x = xp.zeros((2, 3), dtype=xp.float32, device=device)
    assert (x.device, x.to_device(x.device)) == (device, x)
    here = xp.ones(3, dtype=xp.int8)
    for new in (
        *(xp.ones(2, device=x.device), xp.asarray([1], device=x.device), xp.zeros_like(x)),
        *(xp.full_like(here, 2, device=x.device), xp.empty_like(here, device=x.device)),
        *(xp.ones_like(here, device=x.device), xp.astype(here, xp.float64, device=x.device)),
    ):
        assert new.device == device
    assert xp.full_like(here, 2, device=x.device).dtype == xp.int8
    back = xp.zeros_like(x, device="cpu")
    assert (back.device, back.dtype, back.array.tolist()) == ("cpu", xp.float32, [[0] * 3] * 2)


def test_plain_arrays_stay_plain_on_another_device():
    x = np.ones(3, np.int8)
    assert type(ops.array.zeros_like(x, device="meta")) is MetaArray
    assert type(ops.array.astype(x, np.dtype("float32"), device="meta")) is MetaArray
    with pytest.raises(DeviceError, match="has no elements to copy"):
        xp.astype(xp.ones(2, device="meta"), xp.int8, device="cpu")


def test_copy_false_returns_the_same_tensor():
    x = xp.ones(2)
    assert xp.astype(x, xp.float64, copy=False) is xp.asarray(x, copy=False) is x
    assert xp.astype(x, xp.float64).array is not x.array


def test_buffers_are_taken_as_they_are():
    for buffer in (memoryview(b"abc"), bytearray(b"abc"), array.array("d", [1, 2])):
        x = xp.asarray(buffer, copy=False)
        assert np.shares_memory(x.array, np.asarray(buffer))
        assert not np.shares_memory(xp.asarray(buffer, copy=True).array, np.asarray(buffer))
    with pytest.raises(ValueError, match="must copy the elements of an object of type memoryview"):
        xp.asarray(memoryview(b"abc"), dtype=xp.float64, copy=False)
    with pytest.raises(ValueError, match="must be copied"):
        xp.asarray(memoryview(b"abc"), device="meta", copy=False)


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_elements_go_out_and_in_by_dlpack(dtype: Any):
    x = xp.ones((2, 3), dtype=dtype)
    assert x.__dlpack_device__() == (1, 0)
    for asked in ({}, {"copy": True}, {"copy": False}, {"max_version": (1, 0)}, {"stream": None}):
        assert "dltensor" in repr(x.__dlpack__(dl_device=(1, 0), **asked))
    for asked in ({}, {"device": "cpu"}, {"device": x.device, "copy": True}, {"copy": False}):
        y = xp.from_dlpack(x, **asked)
        assert y.dtype == dtype
        assert xp.all(y == x)
        assert np.shares_memory(x.array, y.array) is not asked.get("copy", False)


def test_elements_that_cannot_be_had_are_an_error_of_buffers():
    for device in ((2, 0), (10, 1)):
        with pytest.raises(BufferError):
            xp.ones(2).__dlpack__(dl_device=device)
    nothing = xp.ones(2, device="meta")
    for ask in (nothing.__dlpack__, nothing.__dlpack_device__):
        with pytest.raises(BufferError, match="MetaArray on meta cannot be exported by DLPack"):
            ask()
    with pytest.raises(BufferError, match="ndarray cannot be imported by __dlpack__"):
        xp.from_dlpack(np.zeros(2, object))


def test_namespace_info_is_true():
    info = xp.__array_namespace_info__()
    assert info.capabilities() == {
        "boolean indexing": True,
        "data-dependent shapes": True,
        "max dimensions": 64,
    }
    assert xp.ones((1,) * 64).ndim == 64
    for device in info.devices():
        for kind in (None, "integral", ("bool", "real floating")):
            for name, dtype in info.dtypes(device=device, kind=kind).items():
                assert xp.empty(1, dtype=dtype, device=device).dtype == getattr(xp, name) == dtype
        defaults = info.default_dtypes(device=device)
        made = {"real floating": 1.0, "complex floating": 1j, "integral": 1}
        for kind, scalar in made.items():
            assert xp.asarray(scalar, device=device).dtype == defaults[kind]
        assert xp.argmax(xp.ones(2, device=device)).dtype == defaults["indexing"]
    assert set(info.dtypes(kind="numeric")) == set(info.dtypes()) - {"bool"}


def test_sorting_down_keeps_the_order_of_zeros_of_both_signs() -> None:
    x = np.array([[-0.0, 0.0], [0.0, -0.0], [-2.0, np.nan], [0.0, 0.0]])
    for at in (0, 1):
        column = xp.sort(xp.asarray(x[:, at]), descending=True)
        rows = xp.sort(xp.asarray(x), axis=0, descending=True)[:, at]
        order = xp.argsort(xp.asarray(x[:, at]), descending=True)
        want = np.take(x[:, at], np.asarray(order))
        for found in (column, rows):
            np.testing.assert_array_equal(found, want)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(want))
