"""The operators of the namespace ``array``: the functions of the Python array API standard.

Names, arguments and their order are the standard's, revision 2025.12. Its extensions ``linalg`` and
``fft`` become prefixes: ``array::linalg_det``, ``array::fft_fft``. Where the standard accepts a
Python scalar for an array, there is an overload, named as in PyTorch.

https://data-apis.org/array-api/2025.12
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.parser import parse_schema

Kernel = Callable[..., Any]
"""A function with an operator's parameters, or the library function behind it."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


UNARY = _names("""
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag
isfinite isinf isnan log log1p log2 log10 logical_not negative positive real reciprocal round
sign signbit sin sinh sqrt square tan tanh trunc
""")
"""Elementwise functions of one array."""

BINARY = _names("""
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign
divide equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and
logical_or logical_xor maximum minimum multiply nextafter not_equal pow remainder subtract
""")
"""Elementwise functions of two arrays, either of which may be a Python scalar."""

_PARTS = ("imag", "real")
"""Views of complex arrays."""

_NEW = "ScalarType? dtype=None, Device? device=None"
_AXES = "int[1]? axis=None"
_CUMULATIVE = "int? axis=None, ScalarType? dtype=None, bool include_initial=False"
_NORM = 'str norm="backward"'

CREATION = f"""
arange(Scalar start, Scalar? stop=None, Scalar step=1, *, {_NEW}) -> Tensor
empty(int[1] shape, *, {_NEW}) -> Tensor
eye(int n_rows, int? n_cols=None, *, int k=0, {_NEW}) -> Tensor
full(int[1] shape, Scalar fill_value, *, {_NEW}) -> Tensor
linspace(Scalar start, Scalar stop, int num, *, {_NEW}, bool endpoint=True) -> Tensor
ones(int[1] shape, *, {_NEW}) -> Tensor
zeros(int[1] shape, *, {_NEW}) -> Tensor
fft_fftfreq(int n, *, float d=1.0, {_NEW}) -> Tensor
fft_rfftfreq(int n, *, float d=1.0, {_NEW}) -> Tensor
""".strip().splitlines()
"""Functions without an array argument: ``device`` selects the kernel."""

_OTHERS = f"""
clip(Tensor x, Scalar? min=None, Scalar? max=None) -> Tensor
clip.Tensor(Tensor x, Tensor? min=None, Tensor? max=None) -> Tensor
clip.ScalarMin(Tensor x, Scalar min, Tensor max) -> Tensor
clip.ScalarMax(Tensor x, Tensor min, Scalar max) -> Tensor
empty_like(Tensor x, *, {_NEW}) -> Tensor
full_like(Tensor x, Scalar fill_value, *, {_NEW}) -> Tensor
ones_like(Tensor x, *, {_NEW}) -> Tensor
zeros_like(Tensor x, *, {_NEW}) -> Tensor
meshgrid(Tensor[] arrays, *, str indexing="xy") -> Tensor[]
tril(Tensor x, *, int k=0) -> Tensor
triu(Tensor x, *, int k=0) -> Tensor
astype(Tensor(a) x, ScalarType dtype, *, bool copy=True, Device? device=None) -> Tensor(a)
broadcast_arrays(Tensor[] arrays) -> Tensor[]
broadcast_to(Tensor(a) x, int[1] shape) -> Tensor(a)
take(Tensor x, Tensor indices, *, int? axis=None) -> Tensor
take_along_axis(Tensor x, Tensor indices, *, int axis=-1) -> Tensor
matmul(Tensor x1, Tensor x2) -> Tensor
matrix_transpose(Tensor(a) x) -> Tensor(a)
tensordot(Tensor x1, Tensor x2, *, int axes=2) -> Tensor
tensordot.dims(Tensor x1, Tensor x2, *, int[][] axes) -> Tensor
vecdot(Tensor x1, Tensor x2, *, int axis=-1) -> Tensor
concat(Tensor[] arrays, *, int? axis=0) -> Tensor
expand_dims(Tensor(a) x, int[1] axis=0) -> Tensor(a)
flip(Tensor(a) x, *, {_AXES}) -> Tensor(a)
moveaxis(Tensor(a) x, int[1] source, int[1] destination) -> Tensor(a)
permute_dims(Tensor(a) x, int[] axes) -> Tensor(a)
repeat(Tensor x, int repeats, *, int? axis=None) -> Tensor
repeat.Tensor(Tensor x, Tensor repeats, *, int? axis=None) -> Tensor
reshape(Tensor(a) x, int[1] shape, *, bool? copy=None) -> Tensor(a)
roll(Tensor x, int[1] shift, *, {_AXES}) -> Tensor
squeeze(Tensor(a) x, int[1] axis) -> Tensor(a)
stack(Tensor[] arrays, *, int axis=0) -> Tensor
tile(Tensor x, int[] repetitions) -> Tensor
unstack(Tensor(a) x, *, int axis=0) -> Tensor(a)[]
argmax(Tensor x, *, int? axis=None, bool keepdims=False) -> Tensor
argmin(Tensor x, *, int? axis=None, bool keepdims=False) -> Tensor
count_nonzero(Tensor x, *, {_AXES}, bool keepdims=False) -> Tensor
nonzero(Tensor x) -> Tensor[]
searchsorted(Tensor x1, Tensor x2, *, str side="left", Tensor? sorter=None) -> Tensor
searchsorted.Scalar(Tensor x1, Scalar x2, *, str side="left", Tensor? sorter=None) -> Tensor
where(Tensor condition, Tensor x1, Tensor x2) -> Tensor
where.ScalarSelf(Tensor condition, Scalar x1, Tensor x2) -> Tensor
where.ScalarOther(Tensor condition, Tensor x1, Scalar x2) -> Tensor
isin(Tensor x1, Tensor x2, *, bool invert=False) -> Tensor
isin.Scalar(Tensor x1, Scalar x2, *, bool invert=False) -> Tensor
isin.ScalarFirst(Scalar x1, Tensor x2, *, bool invert=False) -> Tensor
unique_all(Tensor x) -> (Tensor values, Tensor indices, Tensor inverse_indices, Tensor counts)
unique_counts(Tensor x) -> (Tensor values, Tensor counts)
unique_inverse(Tensor x) -> (Tensor values, Tensor inverse_indices)
unique_values(Tensor x) -> Tensor
argsort(Tensor x, *, int axis=-1, bool descending=False, bool stable=True) -> Tensor
sort(Tensor x, *, int axis=-1, bool descending=False, bool stable=True) -> Tensor
cumulative_prod(Tensor x, *, {_CUMULATIVE}) -> Tensor
cumulative_sum(Tensor x, *, {_CUMULATIVE}) -> Tensor
max(Tensor x, *, {_AXES}, bool keepdims=False) -> Tensor
mean(Tensor x, *, {_AXES}, bool keepdims=False) -> Tensor
min(Tensor x, *, {_AXES}, bool keepdims=False) -> Tensor
prod(Tensor x, *, {_AXES}, ScalarType? dtype=None, bool keepdims=False) -> Tensor
std(Tensor x, *, {_AXES}, Scalar correction=0.0, bool keepdims=False) -> Tensor
sum(Tensor x, *, {_AXES}, ScalarType? dtype=None, bool keepdims=False) -> Tensor
var(Tensor x, *, {_AXES}, Scalar correction=0.0, bool keepdims=False) -> Tensor
all(Tensor x, *, {_AXES}, bool keepdims=False) -> Tensor
any(Tensor x, *, {_AXES}, bool keepdims=False) -> Tensor
diff(Tensor x, *, int axis=-1, int n=1, Tensor? prepend=None, Tensor? append=None) -> Tensor
linalg_cholesky(Tensor x, *, bool upper=False) -> Tensor
linalg_cross(Tensor x1, Tensor x2, *, int axis=-1) -> Tensor
linalg_det(Tensor x) -> Tensor
linalg_diagonal(Tensor(a) x, *, int offset=0) -> Tensor(a)
linalg_eig(Tensor x) -> (Tensor eigenvalues, Tensor eigenvectors)
linalg_eigh(Tensor x) -> (Tensor eigenvalues, Tensor eigenvectors)
linalg_eigvals(Tensor x) -> Tensor
linalg_eigvalsh(Tensor x) -> Tensor
linalg_inv(Tensor x) -> Tensor
linalg_matrix_norm(Tensor x, *, bool keepdims=False, str? ord="fro") -> Tensor
linalg_matrix_norm.ord(Tensor x, *, bool keepdims=False, Scalar ord) -> Tensor
linalg_matrix_power(Tensor x, int n) -> Tensor
linalg_matrix_rank(Tensor x, *, Scalar? rtol=None) -> Tensor
linalg_matrix_rank.Tensor(Tensor x, *, Tensor rtol) -> Tensor
linalg_outer(Tensor x1, Tensor x2) -> Tensor
linalg_pinv(Tensor x, *, Scalar? rtol=None) -> Tensor
linalg_pinv.Tensor(Tensor x, *, Tensor rtol) -> Tensor
linalg_qr(Tensor x, *, str mode="reduced") -> (Tensor Q, Tensor R)
linalg_slogdet(Tensor x) -> (Tensor sign, Tensor logabsdet)
linalg_solve(Tensor x1, Tensor x2) -> Tensor
linalg_svd(Tensor x, *, bool full_matrices=True) -> (Tensor U, Tensor S, Tensor Vh)
linalg_svdvals(Tensor x) -> Tensor
linalg_trace(Tensor x, *, int offset=0, ScalarType? dtype=None) -> Tensor
linalg_vector_norm(Tensor x, *, {_AXES}, bool keepdims=False, Scalar ord=2) -> Tensor
fft_fftshift(Tensor x, *, int[1]? axes=None) -> Tensor
fft_ifftshift(Tensor x, *, int[1]? axes=None) -> Tensor
""".strip().splitlines()

_TRANSFORMS = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_N_TRANSFORMS = ("fftn", "ifftn", "rfftn", "irfftn")


@dataclass(frozen=True, slots=True)
class ArrayFunction:
    """An operator's schema, and the standard's function that its kernels call."""

    schema: FunctionSchema

    @property
    def operator(self) -> str:
        """Its name with the overload, without the namespace: ``"add.Scalar"``."""
        return str(self.schema.name)

    @property
    def path(self) -> tuple[str, ...]:
        """The function's path in the standard's namespace: ``("linalg", "det")``."""
        extension, _, name = self.schema.name.name.partition("_")
        if extension in ("linalg", "fft"):
            return (extension, name)
        return (self.schema.name.name,)

    @property
    def is_creation(self) -> bool:
        """Whether it has no array among its arguments."""
        return not any(argument.type.dispatches for argument in self.schema.arguments)

    @property
    def places_of_indices(self) -> tuple[int, ...]:
        """Positions of index arguments, which may be host arrays whatever the others' device."""
        arguments = enumerate(self.schema.arguments)
        return tuple(place for place, each in arguments if str(each.type) == "Tensor?[]")

    @property
    def has_device(self) -> bool:
        """Whether it takes the device of its result."""
        return any(argument.name == "device" for argument in self.schema.arguments)

    @property
    def promoted(self) -> tuple[str, ...]:
        """Names of the arguments that are promoted together: arrays, lists of arrays, scalars."""
        names = tuple(argument.name for argument in self.schema.arguments)
        if self.schema.name.name in _ALL_PROMOTED:
            return names[:2]
        return _PROMOTED.get(self.schema.name.name, ())


_ALL_PROMOTED = frozenset(
    [*BINARY, "matmul", "tensordot", "vecdot", "linalg_cross", "linalg_outer", "linalg_solve"]
)
_PROMOTED = {
    "clip": ("x", "min", "max"),
    "concat": ("arrays",),
    "isin": ("x1", "x2"),
    "stack": ("arrays",),
    "where": ("x1", "x2"),
}


def _schemas() -> Iterator[str]:
    for name in UNARY:
        alias = "(a)" if name in _PARTS else ""
        yield f"{name}(Tensor{alias} x) -> Tensor{alias}"
    for name in BINARY:
        yield f"{name}.Tensor(Tensor x1, Tensor x2) -> Tensor"
        yield f"{name}.Scalar(Tensor x1, Scalar x2) -> Tensor"
        yield f"{name}.ScalarFirst(Scalar x1, Tensor x2) -> Tensor"
    yield from CREATION
    yield from _OTHERS
    for name in _TRANSFORMS:
        yield f"fft_{name}(Tensor x, *, int? n=None, int axis=-1, {_NORM}) -> Tensor"
    for name in _N_TRANSFORMS:
        yield f"fft_{name}(Tensor x, *, int[]? s=None, int[]? axes=None, {_NORM}) -> Tensor"


FUNCTIONS = tuple(ArrayFunction(parse_schema(text)) for text in _schemas())
"""All operators, one entry for each overload."""
