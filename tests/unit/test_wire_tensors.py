"""Arrays as messages: every dtype, layout and kind of tensor, and every way to be malformed."""

import sys

import ml_dtypes
import numpy as np
import pytest

from opdispatch import TransformError, func, vmap
from opdispatch.arrays import CUDA_BITS, key_bits_of
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import WireTensor, tensor_from_proto, tensor_to_proto
from opdispatch_wire.v1 import values_pb2 as pb


def there_and_back(array, **options):
    data = tensor_to_proto(array).SerializeToString()
    return tensor_from_proto(pb.Tensor.FromString(data), **options)


def same(one, two):
    """Plain arrays of equal dtype, shape and elements, to the bit."""
    assert type(one) is type(two) is np.ndarray
    return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())


def test_a_numpy_scalar_comes_back_as_a_0d_array_of_its_dtype():
    for scalar in (np.float64(1.5), np.float32(2), np.int64(3), np.bool_(True), np.complex128(1j)):
        back = there_and_back(scalar)
        assert type(back) is np.ndarray
        assert (back.shape, back.dtype, back.item()) == ((), scalar.dtype, scalar.item())
    assert there_and_back(ml_dtypes.bfloat16(1.5)).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.arange(24).reshape(2, 3, 4)[::-1, :, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.broadcast_to(np.float32(3), (2, 2)),
        np.array(5, dtype=np.uint16),
        np.zeros((0, 3)),
        np.zeros((3, 0, 2), dtype=bool),
        np.arange(4, dtype="longlong"),
        np.arange(4, dtype=">u2").byteswap(),
        np.array([1, 2], dtype=ml_dtypes.bfloat16)[::-1],
        np.ones((2, 2)).view(np.matrix),
    ],
    ids=lambda array: f"{array.dtype.str}{list(array.shape)}{list(array.strides)}",
)
def test_any_layout_and_byte_order_arrives_as_the_same_elements(array):
    back = there_and_back(array)
    assert back.dtype.isnative
    assert back.dtype == array.dtype.newbyteorder("=") or back.dtype == array.dtype
    np.testing.assert_array_equal(back, np.asarray(array))
    assert back.shape == array.shape


def test_the_bytes_are_little_endian_in_c_order():
    message = tensor_to_proto(np.array([[1, 2], [3, 4]], dtype=">i2").T)
    assert message.data == b"\1\0\3\0\2\0\4\0"
    assert (message.dtype, list(message.shape), message.device) == ("int16", [2, 2], "cpu")
    assert message.dispatch_keys == 0


def test_odd_bytes_in_a_bool_array_arrive_as_true():
    array = np.array([0, 1, 2, 255], dtype=np.uint8).view(bool)
    assert tensor_to_proto(array).data == b"\0\1\1\1"


def test_decoded_arrays_are_views_unless_they_are_to_be_written_to():
    message = tensor_to_proto(np.arange(3))
    assert not tensor_from_proto(message).flags.writeable
    writable = tensor_from_proto(message, writable=True)
    writable[0] = 7
    assert tensor_from_proto(message)[0] == 0
    assert not tensor_from_proto(tensor_to_proto(np.arange(0))).flags.writeable


def test_a_tensor_with_keys_of_its_own_comes_back_as_one():
    keys = DispatchKeySet.of(DispatchKey.SparseCPU, DispatchKey.AutogradCPU)
    tensor = Tensor(np.arange(3.0), keys=keys)
    back = there_and_back(tensor)
    assert isinstance(back, Tensor)
    assert back.key_set == keys
    assert not back.requires_grad
    np.testing.assert_array_equal(back.array, tensor.array)


@pytest.mark.parametrize("keys", [None, DispatchKeySet.of(DispatchKey.CPU)])
def test_requires_grad_survives_whatever_the_keys(keys):
    tensor = Tensor(np.arange(3.0), keys=keys, requires_grad=True)
    back = there_and_back(tensor)
    assert (back.requires_grad, back.key_set) == (True, tensor.key_set)
    assert WireTensor(tensor_to_proto(tensor)).key_bits == tensor.key_bits


def test_a_tensor_with_the_keys_of_a_plain_array_is_sent_as_one():
    tensor = Tensor(np.arange(3.0), keys=DispatchKeySet.of(DispatchKey.CPU))
    assert tensor_to_proto(tensor).dispatch_keys == 0
    assert type(there_and_back(tensor)) is np.ndarray


def test_requires_grad_without_keys_means_those_of_such_a_tensor():
    message = tensor_to_proto(np.ones(2))
    message.requires_grad = True
    expected = Tensor(np.ones(2), requires_grad=True).key_bits
    assert tensor_from_proto(message).key_bits == expected
    assert WireTensor(message).key_bits == expected


class DLPackOnly:
    """Array of another library, with DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class ArrayOnly:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype=np.int16)


def test_arrays_of_other_libraries_are_tensors():
    assert same(there_and_back(DLPackOnly(np.arange(3))), np.arange(3))
    assert same(there_and_back(ArrayOnly()), np.arange(3, dtype=np.int16))


def test_an_array_that_does_not_give_its_elements_says_why():
    class Broken:
        def __dlpack__(self, **options):
            raise BufferError("it requires gradients")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(WireError, match=r"by __dlpack__ \(BufferError: it requires gradients"):
        tensor_to_proto(Broken())


def tensor_message(**changes):
    fields = {"dtype": "float32", "shape": [2, 3], "data": bytes(24), **changes}
    return pb.Tensor(**fields)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float13"}, r"\$\.dtype: unknown dtype 'float13'; accepted are bool"),
        ({"dtype": ""}, r"\$\.dtype: unknown dtype ''"),
        ({"dtype": "object"}, "unknown dtype"),
        ({"dtype": "int4"}, "unknown dtype"),
        ({"dtype": "x" * 10_000}, r"unknown dtype 'xxx.{,40}'; accepted"),
        ({"shape": [-1]}, r"\$\.shape\[0\] is -1; a dimension is never negative"),
        ({"shape": [2, 3, -(2**63)]}, r"\$\.shape\[2\] is -9223372036854775808"),
        ({"shape": [1] * 65}, r"\$\.shape has 65 dimensions; a tensor has at most 64"),
        ({"shape": [2, 2]}, r"\$\.data has 24 bytes; shape \[2, 2\] of float32 needs 16"),
        ({"shape": [2**62, 2**62]}, rf"needs {2**126}"),
        ({"shape": [2**63 - 1] * 64}, r"\$\.data has 24 bytes"),
        ({"shape": [0, 2**62], "data": b""}, r"\$\.shape .* exceeds the address space"),
        ({"shape": []}, r"has 24 bytes; shape \[\] of float32 needs 4"),
        ({"dtype": "bool", "data": b"\0\1\0\1\0\2"}, r"\$\.data has a byte that is not a bool"),
        ({"device": "cuda"}, r"\$\.device is 'cuda'; expected 'cpu' or 'cuda:N'"),
        ({"device": "tpu:0"}, r"\$\.device is 'tpu:0'"),
        ({"device": "cuda:-1"}, r"\$\.device"),
    ],
    ids=str,
)
def test_a_malformed_tensor_is_refused_before_anything_is_built(changes, words):
    message = tensor_message(**changes)
    for check in (tensor_from_proto, WireTensor):
        with pytest.raises(WireError, match=words):
            check(message)


def test_tensor_may_have_as_many_dimensions_as_numpy_allows():
    assert tensor_from_proto(tensor_message(shape=[1] * 64, data=bytes(4))).shape == (1,) * 64


def test_every_word_of_keys_is_a_key_set():
    message = tensor_message(dispatch_keys=2**64 - 1)
    assert tensor_from_proto(message).key_bits == WireTensor(message).key_bits == 2**64 - 1


def test_a_cuda_tensor_needs_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    message = tensor_message(device="cuda:0")
    assert WireTensor(message).device == "cuda:0"
    no_cupy = r"\$: this process has no CuPy for arrays on 'cuda:0'"
    with pytest.raises(WireError, match=no_cupy) as caught:
        tensor_from_proto(message)
    assert "install" in caught.value.hint


def test_a_cupy_array_is_sent_from_its_gpu_and_put_on_it(cupy_stand_in):
    array = cupy_stand_in.ndarray(np.arange(3), 1)
    message = tensor_to_proto(array)
    assert (message.device, message.dispatch_keys) == ("cuda:1", 0)
    assert WireTensor(message).key_bits == key_bits_of(array) == CUDA_BITS
    back = tensor_from_proto(message)
    assert type(back) is cupy_stand_in.ndarray
    assert same(back.get(), array.get())
    assert tensor_to_proto(Tensor(array)).dispatch_keys == Tensor(array).key_bits


def test_missing_gpu_is_an_error_that_says_so(cupy_stand_in):
    message = tensor_message(device="cuda:5")
    with pytest.raises(
        WireError, match=r"\$: .*'cuda:5' \(CUDARuntimeError: cudaErrorInvalidDevice"
    ):
        tensor_from_proto(message)


@pytest.mark.gpu
def test_a_real_cupy_array_comes_back_on_its_gpu(cupy):
    array = cupy.asfortranarray(cupy.arange(6, dtype="float32").reshape(2, 3))
    back = there_and_back(array)
    assert isinstance(back, cupy.ndarray)
    assert back.device == array.device
    assert same(back.get(), np.arange(6, dtype=np.float32).reshape(2, 3))


def test_integer_tensor_with_requires_grad_is_refused():
    message = tensor_to_proto(np.arange(3))
    message.requires_grad = True
    with pytest.raises(WireError, match=r"\$\.requires_grad is set, but tensors of int64"):
        tensor_from_proto(message)


def test_a_tensor_of_a_transform_is_not_sent():
    for transform in (vmap, func.grad):
        with pytest.raises(
            TransformError, match=r"\$\.x: a tensor inside a transform cannot be sent"
        ):
            transform(lambda x: tensor_to_proto(x, at="$.x"))(Tensor(np.ones(2)))
