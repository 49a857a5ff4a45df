import ml_dtypes
import numpy as np
import pytest

from opdispatch.schema.scalar_type import (
    CODE_OF_NAME,
    find_code_of_dtype,
    find_dtype_of_code,
    find_dtype_of_name,
    is_numeric,
)


@pytest.mark.parametrize("code", range(46))
def test_codes_and_dtypes_are_one_to_one(code):
    dtype = find_dtype_of_code(code)
    if dtype is not None:
        assert find_code_of_dtype(dtype) == code
        assert find_dtype_of_name(dtype.name) == dtype
        assert is_numeric(dtype)


def test_names_are_pytorchs():
    for name in ("uint8", "int64", "float16", "float32", "complex128", "bool"):
        assert find_dtype_of_code(CODE_OF_NAME[name]) == np.dtype(name)
    assert find_dtype_of_code(CODE_OF_NAME["float"]) == np.dtype("float32")
    assert find_dtype_of_code(CODE_OF_NAME["long"]) == np.dtype("int64")
    assert find_dtype_of_code(CODE_OF_NAME["bfloat16"]) == np.dtype(ml_dtypes.bfloat16)


def test_unknown_code_dtype_or_name_finds_none():
    assert find_dtype_of_code(CODE_OF_NAME["quint8"]) is None
    assert find_dtype_of_code(-1) is None
    assert find_code_of_dtype(np.dtype("U3")) is None
    for name in ("object", "float", "f4", "", "datetime64", "finfo"):
        assert find_dtype_of_name(name) is None


def test_only_numbers_are_numeric():
    assert is_numeric(np.dtype(ml_dtypes.float8_e5m2))
    assert is_numeric(np.dtype(">f4"))
    for other in ("O", "U3", "S2", "M8[s]", "V4", [("a", "f4")]):
        assert not is_numeric(np.dtype(other))
