"""Errors of kernels for ``Meta``, in one sentence each."""

import pytest

from opdispatch import ArgumentError, MetaArray
from opdispatch.native.array.operators.meta_kernels import META_FUNCTIONS


def meta(*shape, dtype="float32"):
    return MetaArray(shape, dtype)


@pytest.mark.parametrize(
    ("operator", "arguments", "keywords", "message"),
    [
        (
            "add.Tensor",
            (meta(2, 3), meta(4)),
            {},
            "array::add was given shapes [2, 3] and [4], which do not broadcast",
        ),
        (
            "sum",
            (meta(2, 3),),
            {"axis": 2},
            "array::sum was given axis 2, which is out of range for 2 dimensions",
        ),
        (
            "sum",
            (meta(2, 3),),
            {"axis": (0, -2)},
            "array::sum was given axes [0, -2], of which two are the same axis",
        ),
        (
            "max",
            (meta(0, 3),),
            {},
            "array::max cannot reduce zero elements of an array of shape [0, 3]",
        ),
        (
            "reshape",
            (meta(2, 3), (4, -1)),
            {},
            "array::reshape cannot make the shape [4, -1] from the shape [2, 3]",
        ),
        (
            "matmul",
            (meta(2, 3), meta(2, 3)),
            {},
            "array::matmul was given shapes [2, 3] and [2, 3], whose extents do not agree",
        ),
        (
            "linalg_solve",
            (meta(3, 3), meta(2, 3)),
            {},
            "array::linalg_solve was given shapes [3, 3] and [2, 3], whose extents do not agree",
        ),
        (
            "linalg_inv",
            (meta(4, 2, 3),),
            {},
            "array::linalg_inv needs square matrices, not the shape [4, 2, 3]",
        ),
        (
            "concat",
            ([meta(2, 3), meta(3, 4)],),
            {},
            "array::concat was given shapes [2, 3] and [3, 4], whose extents differ outside axis 0",
        ),
        (
            "stack",
            ([meta(2, 3), meta(2)],),
            {},
            "array::stack was given shapes [2, 3] and [2], which differ",
        ),
        (
            "atan2.Tensor",
            (meta(2), meta(2, dtype="complex64")),
            {},
            "array::atan2 is not defined for float32 and complex64",
        ),
        (
            "bitwise_and.Scalar",
            (meta(2), 3),
            {},
            "array::bitwise_and is not defined for float32 and 3",
        ),
        (
            "linalg_cross",
            (meta(2), meta(2)),
            {},
            "array::linalg_cross needs the extent 3 at axis -1, but was given shapes [2] and [2]",
        ),
        (
            "full",
            ((2,), 2**70),
            {},
            f"array::full was given {2**70}, which no integer type can hold",
        ),
    ],
)
def test_meta_kernel_errors_are_one_sentence(operator, arguments, keywords, message):
    with pytest.raises(ArgumentError) as caught:
        META_FUNCTIONS[operator](*arguments, **keywords)
    assert caught.value.message == message
