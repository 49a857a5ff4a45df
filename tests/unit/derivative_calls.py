"""Calls of the operators of the library ``array`` that have derivatives: each formula is in one."""

import numpy as np

from opdispatch import Tensor
from opdispatch import array_api as xp
from opdispatch.array_api.operators import OPERATORS
from opdispatch.native.array.operators import functional_variants


def real(*shape, low=-2.0, high=2.0, seed=0):
    """Numbers in a range, of which no two are equal."""
    random = np.random.default_rng(seed + 17 * len(shape))
    return random.uniform(low, high, shape)


def complex_(*shape, seed=0):
    return real(*shape, seed=seed) + 1j * real(*shape, seed=seed + 1)


def leaf(array):
    return Tensor(np.array(array), requires_grad=array.dtype.kind in "fc")


class Call:
    """An operator with arguments: arrays become tensors whose gradients are checked."""

    def __init__(self, operator, *args, prepare=None, second=True, **options):
        self.operator, self.args, self.options = operator, args, options
        self.prepare, self.second = prepare, second

    def __repr__(self):
        kind = "complex" if any(each.dtype.kind == "c" for each in self.arrays) else "real"
        shapes = "x".join(str(list(each.shape)).replace(" ", "") for each in self.arrays)
        options = [
            f"{key}={value}"
            for key, value in self.options.items()
            if not isinstance(value, np.ndarray)
        ]
        return "-".join([self.operator, kind, shapes, *options])

    @property
    def arrays(self):
        flat = []
        for each in self.args:
            flat += each if isinstance(each, list) else [each]
        options = [each for each in self.options.values() if isinstance(each, np.ndarray)]
        return [each for each in (*flat, *options) if isinstance(each, np.ndarray)]

    def checked(self):
        """A function of the tensors, and the tensors."""
        name, _, overload = self.operator.partition(".")
        operator = getattr(getattr(OPERATORS, name), overload or "default")

        def function(*tensors):
            if self.prepare is not None:
                tensors = [self.prepare(each) for each in tensors]
            left = iter(tensors)

            def filled(value):
                if isinstance(value, list):
                    return [filled(each) for each in value]
                return next(left) if isinstance(value, np.ndarray) else value

            args = [filled(each) for each in self.args]
            options = {key: filled(value) for key, value in self.options.items()}
            return operator(*args, **options)

        return function, [leaf(each) for each in self.arrays]


def unary_calls():
    domains = {
        **dict.fromkeys(("acos", "asin", "atanh"), (-0.9, 0.9)),
        **dict.fromkeys(("log", "log2", "log10", "sqrt", "log1p", "reciprocal"), (0.3, 3)),
        "acosh": (1.2, 3),
    }
    for name in (
        *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "exp"),
        *("expm1", "floor", "log", "log10", "log1p", "log2", "negative", "positive", "real"),
        *("reciprocal", "round", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc"),
        "conj",
    ):
        low, high = domains.get(name, (-2, 2))
        yield Call(name, real(3, low=low, high=high))
    for name in (
        *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "exp"),
        *("expm1", "imag", "log", "log10", "log1p", "log2", "negative", "positive", "real"),
        *("reciprocal", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh"),
    ):
        yield Call(name, complex_(3))


def binary_calls():
    x, row = real(2, 3, low=0.3), real(3, low=0.4, seed=5)
    for name in (
        *("add", "atan2", "copysign", "divide", "floor_divide", "hypot", "logaddexp", "maximum"),
        *("minimum", "multiply", "pow", "remainder", "subtract"),
    ):
        yield Call(f"{name}.Tensor", x, row)
        yield Call(f"{name}.Scalar", x, 1.5)
        yield Call(f"{name}.ScalarFirst", 1.5, x)
    z, w = complex_(2, 3), complex_(3, seed=7)
    for name in ("add", "divide", "multiply", "pow", "subtract"):
        yield Call(f"{name}.Tensor", z, w)
        yield Call(f"{name}.Tensor", x, w)
        yield Call(f"{name}.Scalar", z, 1.5 - 0.5j)
        yield Call(f"{name}.ScalarFirst", 1.5 - 0.5j, z)
    yield Call("pow.Scalar", real(3), 2)
    yield Call("pow.Scalar", real(3), 0)
    yield Call("pow.Scalar", real(3), -1)


def choice_calls():
    x, condition = real(2, 3), np.array([[True, False, True], [False, False, True]])
    yield Call("clip", x, -1.0, 1.0)
    yield Call("clip", x, None, 0.5)
    yield Call("clip", x)
    yield Call("clip.Tensor", x, real(3, low=-2, high=-0.5), real(3, low=0.5, high=1, seed=3))
    yield Call("clip.Tensor", x, real(3), None)
    yield Call("clip.ScalarMax", x, real(3, low=-2, high=-0.5), 0.5)
    yield Call("clip.ScalarMin", x, -0.5, real(3, low=0.5, high=1, seed=3))
    yield Call("clip.Tensor", x, None, real(3))
    yield Call("where", condition, x, real(3, seed=4))
    yield Call("where", condition, complex_(2, 1), x)
    yield Call("where.ScalarSelf", condition, 1.0, x)
    yield Call("where.ScalarOther", condition, x, 1.0)


def with_zeros(count):
    x = real(2, 4)
    x[0, :count] = 0
    return x


def reduction_calls():
    x, z = real(2, 3, 2), complex_(2, 3)
    for name in ("sum", "prod", "mean", "std", "var"):
        yield Call(name, x)
        yield Call(name, x, axis=[0, -1])
        yield Call(name, x, axis=[1], keepdims=True)
        yield Call(name, z, axis=[1])
    yield Call("std", real(2, 3), axis=[1], correction=1.0)
    yield Call("var", real(2, 3), axis=[1], correction=1.0)
    for name in ("max", "min"):
        yield Call(name, x)
        yield Call(name, x, axis=[0, 2])
        yield Call(name, x, axis=[1], keepdims=True)
    for count in (1, 2, 4):
        yield Call("prod", with_zeros(count), axis=[1])
        yield Call("prod", with_zeros(count))
        yield Call("cumulative_prod", with_zeros(count), axis=1)
    yield Call("prod", z * np.array([0, 1, 1]), axis=[1])
    yield Call("prod", real(2, 2), axis=[])
    for name in ("cumulative_sum", "cumulative_prod"):
        yield Call(name, real(4))
        yield Call(name, real())
        yield Call(name, x, axis=1, include_initial=True)
        yield Call(name, z, axis=-1)
    yield Call("cumulative_prod", z * np.array([1, 0, 1]), axis=1, include_initial=True)
    yield Call("diff", x, axis=1)
    yield Call("diff", complex_(5), n=3)
    yield Call("diff", real(3), n=4)
    yield Call("diff", x, axis=1, prepend=real(2, 2, 2), append=real(2, 1, 2))
    yield Call("diff", real(3), prepend=real(1, seed=3))
    yield Call("sort", x, axis=1)
    yield Call("sort", x, descending=True)


def manipulation_calls():
    x, z = real(2, 3), complex_(2, 3)
    yield Call("astype", x, np.dtype(np.complex128))
    yield Call("broadcast_arrays", [x, real(3), real(2, 1)])
    yield Call("broadcast_to", real(3, 1), [2, 3, 2])
    for axis in (0, -1):
        yield Call("concat", [x, real(2, 3, seed=4)], axis=axis)
        yield Call("stack", [x, z], axis=axis)
        yield Call("unstack", x, axis=axis)
    yield Call("concat", [x, real(4)], axis=None)
    yield Call("expand_dims", x, axis=-2)
    yield Call("flip", x)
    yield Call("flip", z, axis=[0])
    for indexing in ("xy", "ij"):
        yield Call("meshgrid", [real(2), real(3), real(1)], indexing=indexing)
    yield Call("meshgrid", [real(), real(2)])
    yield Call("meshgrid", [real(2)])
    yield Call("moveaxis", real(2, 3, 1), [0, 2], [-1, 0])
    yield Call("permute_dims", real(2, 3, 1), [1, -1, 0])
    yield Call("repeat", x, 2)
    yield Call("repeat", x, 2, axis=-1)
    yield Call("repeat.Tensor", x, np.array([2, 0, 1]), axis=1)
    yield Call("repeat.Tensor", real(3), np.array([2, 0, 1]))
    yield Call("repeat", real(), 3, axis=-1)
    yield Call("repeat.Tensor", real(), np.array(3), axis=0)
    yield Call("reshape", x, [3, -1])
    yield Call("roll", x, [4])
    yield Call("roll", z, [1, -1], axis=[0, 1])
    yield Call("squeeze", real(1, 2, 1), [0, -1])
    yield Call("tile", x, [2, 1, 3])
    yield Call("tile", x, [2])
    for name in ("tril", "triu"):
        yield Call(name, real(2, 3, 3), k=1)


def indexing_calls():
    x, places = real(4, 3), np.array([2, 0, 2, -1, 2])
    yield Call("getitem", x, [1, None], [None, None], [2, 1])
    yield Call("getitem", x, [None, -1, None], [None] * 3, [None, None, -1])
    yield Call("getitem.Tensor", x, [None], [None], [None], [places])
    yield Call("getitem.Tensor", x, [None] * 2, [None] * 2, [None] * 2, [places, np.array([1])])
    yield Call("getitem.Tensor", x, [None] * 2, [None] * 2, [None, 1], [np.array([3, 3]), None])
    yield Call("getitem.Tensor", complex_(3), [None], [None], [None], [np.array([1, 0, 1]) > 0])
    yield Call("take", real(4), places)
    yield Call("take", x, np.array([2, 0, 2]), axis=-1)
    yield Call("take", x, np.array([[1, 1], [0, 1]])[0], axis=0)
    yield Call("take", x, np.array([[1, 1, 0], [0, -1, 0]]), axis=1)
    yield Call("take", x, np.array(1), axis=0)
    yield Call("take", x, np.array([[1, 1], [0, -1]]))
    yield Call("take", real(), np.array([0, 0]), axis=0)
    yield Call("take", real(200), np.array([-1, 127, -1, 3], np.int8))
    yield Call("take_along_axis", x, np.array([[2, 2, 0], [1, -1, 0]]), axis=0)
    yield Call("take_along_axis", x, np.array([[2], [2], [0], [1]]))
    yield Call("take_along_axis", x, np.array([[2], [-1], [0], [-3]], np.int8))
    yield Call("take_along_axis", x, np.array([[1, -3, 0]]), axis=0)


def product_calls():
    shapes = [
        *([(3,), (3,)], [(3,), (3, 2)], [(2, 3), (3,)], [(2, 3), (3, 2)], [(3,), (2, 3, 2)]),
        *([(2, 2, 3), (3,)], [(2, 2, 3), (3, 2)], [(2, 3), (2, 3, 1)], [(2, 1, 2, 3), (2, 3, 2)]),
        *([(2, 3, 0), (0, 5)], [(2, 3, 4), (4, 0)]),
    ]
    for one, other in shapes:
        yield Call("matmul", real(*one), real(*other, seed=3))
    yield Call("matmul", complex_(2, 2, 3), complex_(3, 2))
    yield Call("matmul", complex_(3), real(3, 2))
    for axes in (0, 1, 2):
        yield Call(
            "tensordot", real(2, 3, 2), real(3, 2, 2) if axes == 2 else real(2, 2), axes=axes
        )
    yield Call("tensordot.dims", complex_(2, 3, 1), complex_(1, 3, 2), axes=[[0, -1], [2, 0]])
    yield Call("tensordot.dims", real(2, 3, 1), real(1, 3, 2), axes=[[1, 0, 2], [1, 2, 0]])
    yield Call("vecdot", real(2, 3), real(3, seed=3))
    yield Call("vecdot", complex_(3, 2), complex_(3, 2, seed=3), axis=-2)
    yield Call("linalg_cross", complex_(2, 3), complex_(3, seed=3))
    yield Call("linalg_cross", real(3, 2), real(3, 1, seed=3), axis=-2)
    yield Call("linalg_outer", real(2), complex_(3))


def hermitian(x):
    return x + xp.conj(xp.matrix_transpose(x))


def positive(x):
    return xp.matmul(x, xp.conj(xp.matrix_transpose(x))) + xp.eye(x.shape[-1])


def far_apart(x):
    """Of a real matrix, one with real eigenvalues and no symmetry."""
    return x + xp.asarray(np.diag([0.0, 10.0, 25.0]))


def singular():
    x = real(2, 3, 3)
    x[0, 2] = 2 * x[0, 1]
    return x


def linalg_calls():
    for make in (real, complex_):
        square, batch = make(3, 3), make(2, 2, 2)
        for name in ("det", "inv", "slogdet"):
            yield Call(f"linalg_{name}", square)
            yield Call(f"linalg_{name}", batch)
        for n in (-2, 0, 1, 3):
            yield Call("linalg_matrix_power", batch, n)
        yield Call("linalg_solve", square, make(3))
        yield Call("linalg_solve", batch, make(2, 3))
        yield Call("linalg_solve", batch, make(batch.shape[-1]))
        yield Call("linalg_solve", make(2, 2), make(2, 2, 1))
        for shape in ((3, 2), (2, 2, 3)):
            yield Call("linalg_pinv", make(*shape))
            yield Call("linalg_diagonal", make(*shape), offset=1)
            yield Call("linalg_diagonal", make(*shape), offset=-1)
            yield Call("linalg_diagonal", make(*shape), offset=-(2**62))
            yield Call("linalg_diagonal", make(*shape), offset=2**62)
            yield Call("linalg_trace", make(*shape), offset=-1)
            yield Call("matrix_transpose", make(*shape))
    yield Call("linalg_pinv.Tensor", real(3, 2), rtol=np.array(1, np.int64) * 0)
    zeros = np.zeros((3, 3))
    zeros[0, 0] = 1.0
    yield Call("linalg_det", singular())
    yield Call("linalg_det", zeros)


def decomposition_calls():
    for make in (real, complex_):
        for upper in (False, True):
            yield Call("linalg_cholesky", make(2, 2, 2), prepare=positive, upper=upper)
        yield Call("linalg_eigvals", make(2, 3, 3))
        yield Call("linalg_eigvalsh", make(3, 3), prepare=hermitian)
        yield Call("linalg_svdvals", make(2, 3))
        yield Call("linalg_svdvals", make(2, 3, 2))
    for mode in ("reduced", "complete"):
        yield Call("linalg_qr", real(3, 3), mode=mode)
    yield Call("linalg_qr", real(2, 3, 2))
    yield Call("linalg_qr", complex_(3, 2))
    yield Call("linalg_qr", real(2, 4))
    yield Call("linalg_qr", complex_(2, 2, 3), mode="complete")
    yield Call("linalg_eigh", real(3, 3), prepare=hermitian)
    yield Call("linalg_eig", real(3, 3), prepare=far_apart)
    yield Call("linalg_svd", real(3, 3))
    yield Call("linalg_svd", real(2, 3, 2), full_matrices=False)
    yield Call("linalg_svd", real(2, 3), full_matrices=False)


def norm_calls():
    for make in (real, complex_):
        x = make(2, 3)
        for ord in (0, 0.5, 1, 1.5, 2, 3, float("inf"), -float("inf"), -1):
            yield Call("linalg_vector_norm", x, axis=[1], ord=ord)
        yield Call("linalg_vector_norm", x)
        yield Call("linalg_vector_norm", x, axis=[0], keepdims=True, ord=3.5)
        for ord in (1, -1, 2, -2, float("inf"), -float("inf")):
            yield Call("linalg_matrix_norm.ord", make(2, 2, 3), ord=ord)
        for ord in ("fro", "nuc"):
            yield Call("linalg_matrix_norm", make(2, 2, 3), ord=ord, keepdims=True)


def fft_calls():
    for norm in ("backward", "ortho", "forward"):
        for n in (None, 3, 6):
            for name in ("fft", "ifft", "irfft", "hfft"):
                yield Call(f"fft_{name}", complex_(4), n=n, norm=norm)
            for name in ("rfft", "ihfft"):
                yield Call(f"fft_{name}", real(4), n=n, norm=norm)
        for name in ("fftn", "ifftn", "irfftn"):
            yield Call(f"fft_{name}", complex_(2, 3), norm=norm)
        yield Call("fft_rfftn", real(2, 3), norm=norm)
    yield Call("fft_fft", real(2, 3), axis=0)
    yield Call("fft_irfft", complex_(3, 2), axis=0, n=4)
    yield Call("fft_irfft", complex_(2), n=1)
    yield Call("fft_fftn", complex_(2), axes=[])
    yield Call("fft_ifftn", real(), norm="forward")
    for name in ("fftn", "ifftn", "irfftn"):
        yield Call(f"fft_{name}", complex_(3, 2), s=[2, 3], axes=[1, 0])
    yield Call("fft_rfftn", real(3, 2), s=[2, 5], axes=[1, 0])
    yield Call("fft_rfftn", real(3, 4), s=[2, -1])
    yield Call("fft_irfftn", complex_(3, 4), s=[-1, -1])
    for name in ("fftshift", "ifftshift"):
        yield Call(f"fft_{name}", real(2, 3))
        yield Call(f"fft_{name}", complex_(2, 3), axes=[1])


def functional_variant_calls():
    one_of_each = {
        call.operator: call for call in CALLS if call.operator in functional_variants.VIEWS
    }
    for name, call in sorted(one_of_each.items()):
        yield Call(f"{name}_copy", *call.args, second=False, **call.options)
    x, whole = real(3, 4), ([None] * 2, [None] * 2, [1] * 2)
    yield Call("setitem.Scalar", x, [1], [None], [None], [], 2.0)
    yield Call("setitem.Tensor", x, [1, None], [None, None], [None, 2], [], real(2, seed=3))
    yield Call("setitem.Tensor", complex_(3, 4), *whole, [], complex_(3, 4, seed=3))
    yield Call("copy", x, real(3, 4, seed=3))
    yield Call("_conj", complex_(3))
    yield Call("_neg_view", real(3))
    yield Call("real_scatter", complex_(3), real(3, seed=3))
    yield Call("imag_scatter", complex_(3), real(3, seed=3))


CALLS = [
    *unary_calls(),
    *binary_calls(),
    *choice_calls(),
    *reduction_calls(),
    *manipulation_calls(),
    *indexing_calls(),
    *product_calls(),
    *linalg_calls(),
    *decomposition_calls(),
    *norm_calls(),
    *fft_calls(),
]
CALLS += functional_variant_calls()
FUNCTIONAL_VARIANTS = {"copy_", *(call.operator for call in functional_variant_calls())}
