"""Tensor: an array that knows its dispatch keys, and otherwise behaves like the array."""

import gc
import math
import weakref

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    BackendComponent,
    DataDependentOutputError,
    DeviceError,
    DispatchKey,
    DispatchKeySet,
    MetaArray,
    QuantizedArray,
    Tensor,
)
from opdispatch.arrays import CPU_BITS, key_bits_of
from opdispatch.tensors.tensor import key_set_of_backend

K = DispatchKey


@pytest.fixture
def array():
    return np.arange(6.0).reshape(2, 3)


def test_a_tensor_has_the_keys_that_its_backend_gives_it(array):
    assert list(Tensor(array).key_set) == [K.CPU, K.ADInplaceOrView, K.AutogradCPU, K.AutocastCPU]
    assert key_bits_of(Tensor(array)) == Tensor(array).key_bits != CPU_BITS


def test_a_backend_without_autocast_has_no_key_for_it():
    assert list(key_set_of_backend(BackendComponent.Lazy)) == [
        K.Lazy,
        K.ADInplaceOrView,
        K.AutogradLazy,
    ]


@pytest.mark.parametrize("backend", [BackendComponent.HIP, BackendComponent.VE])
def test_backends_without_an_autograd_key_share_autograd_other(backend):
    assert list(key_set_of_backend(backend)) == [
        K[backend.name],
        K.ADInplaceOrView,
        K.AutogradOther,
    ]


def test_given_keys_are_the_keys(array):
    keys = DispatchKeySet.of(K.SparseCPU, K.Python)
    assert Tensor(array, keys=keys).key_set == keys


def test_a_number_of_numpys_becomes_an_array():
    for _ in range(2):  # the second time its type has been seen
        assert type(Tensor(np.float64(2)).array) is np.ndarray


def test_the_array_is_shared(array):
    tensor = Tensor(array)
    array[0, 0] = 7
    assert tensor.array is array
    assert np.asarray(tensor) is array
    assert np.shares_memory(np.from_dlpack(tensor), array)


def test_negative_strides_go_by_dlpack_as_a_copy():
    """Shared with PyTorch, they ended the process."""
    backwards = np.arange(4.0)[::-1]
    for each in (backwards, backwards.reshape(2, 2), backwards[:2]):
        for copy in (None, True):
            found = np.from_dlpack(Tensor(each), copy=copy)
            np.testing.assert_array_equal(found, each)
            assert min(found.strides) > 0
        with pytest.raises(BufferError, match=r"negative strides, of shape .* ask for a copy"):
            np.from_dlpack(Tensor(each), copy=False)
        assert np.asarray(Tensor(each)) is each
    one = np.from_dlpack(Tensor(backwards[:1]))
    assert np.shares_memory(one, backwards)


def test_a_copy_is_made_when_one_is_asked_for(array):
    assert not np.shares_memory(np.array(Tensor(array)), array)
    assert np.asarray(Tensor(array), dtype=np.float32).dtype == np.float32


def test_numpy_gets_no_elements_of_a_tensor_without_any():
    with pytest.raises(DeviceError, match="a tensor on 'meta' cannot be converted to"):
        np.asarray(Tensor(MetaArray((2,), "float32")))


def test_numpy_gives_the_array_that_the_tensor_shares(array):
    assert Tensor(array).numpy() is array
    assert Tensor(array).cpu().numpy() is array
    complex_numbers = Tensor(np.array([1 + 2j]))
    assert complex_numbers.conj().numpy().tolist() == [1 - 2j]
    with pytest.raises(DeviceError, match="a tensor on 'meta' cannot be converted to"):
        Tensor(MetaArray((2,), "float32")).numpy()


def test_numpy_takes_no_tensor_off_the_way_of_its_gradients(array):
    tensor = Tensor(array, requires_grad=True)
    for attached in (tensor, tensor * 2):
        with pytest.raises(AutogradError, match=r"requires gradients cannot be converted.*detach"):
            attached.numpy()
    assert tensor.detach().cpu().numpy() is array
    assert (tensor * 2).numpy(force=True).tolist() == (array * 2).tolist()


def test_a_tensor_knows_where_and_what_it_is(array):
    tensor = Tensor(array, requires_grad=True)
    assert (tensor.device, tensor.dtype, tensor.shape, tensor.ndim, len(tensor)) == (
        "cpu",
        np.float64,
        (2, 3),
        2,
        2,
    )
    assert tensor.requires_grad
    assert not Tensor(array).requires_grad


def test_a_device_with_a_number_is_a_gpu():
    device = type("Device", (), {"id": 1})()
    cls = type("ndarray", (), {"__module__": "cupy", "device": device})
    tensor = Tensor(cls())
    assert tensor.device == "cuda:1"
    assert K.AutogradCUDA in tensor.key_set
    assert repr(tensor).endswith(", device='cuda:1')")


def test_a_numpy_scalar_becomes_a_tensor_without_dimensions():
    assert Tensor(np.float32(2)).shape == ()


def test_a_tensor_of_a_tensor_is_of_the_same_array(array):
    tensor = Tensor(Tensor(array, keys=DispatchKeySet.of(K.SparseCPU)))
    assert tensor.array is array
    assert tensor.key_set == Tensor(array).key_set


def test_tensor_of_a_list_raises_type_error():
    with pytest.raises(TypeError, match=r"expected Tensor .* got list"):
        Tensor([1, 2])


def test_arithmetic_gives_tensors(array):
    tensor = Tensor(array)
    for result, expected in (
        (tensor + 1, array + 1),
        (2 * tensor, 2 * array),
        (-tensor, -array),
        (tensor @ tensor.array.T, array @ array.T),
        (tensor - tensor, array - array),
        (tensor == tensor, array == array),
        (tensor[0], array[0]),
    ):
        assert type(result) is Tensor
        np.testing.assert_array_equal(result.array, expected)


def test_functions_of_numpy_take_a_tensor_for_its_array(array):
    tensor = Tensor(array)
    for result, expected in (
        (array + tensor, array + array),
        (np.sin(tensor), np.sin(array)),
        (np.concatenate([tensor, tensor]), np.concatenate([array, array])),
        (np.add.reduce(tensor), np.add.reduce(array)),
    ):
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, expected)


def test_arithmetic_in_place_takes_either_byte_order():
    array = np.array([1, 2], ">f4")
    tensor = Tensor(array)
    tensor += 1
    np.testing.assert_array_equal(array, [2, 3])


def test_arithmetic_in_place_writes_to_the_array_of_the_tensor(array):
    tensor = same = Tensor(array)
    tensor += 1
    assert tensor is same
    assert array[0, 0] == 1
    assert np.multiply(array, 2, out=tensor) is tensor
    assert array[0, 0] == 2
    whole = Tensor(np.empty((2, 3)))
    fraction, integer = np.modf(array / 4, out=(None, whole))
    assert integer is whole
    np.testing.assert_array_equal(fraction + whole.array, array / 4)


def test_a_tensor_prints_its_array_and_what_is_out_of_the_ordinary():
    assert repr(Tensor(np.ones(2))) == "Tensor(array([1., 1.]))"
    assert repr(Tensor(np.ones(1), requires_grad=True)) == (
        "Tensor(array([1.]), requires_grad=True)"
    )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_of_one_element_is_a_number(shape: tuple[int, ...], recwarn):
    """Of any shape, as in PyTorch, whatever NumPy says of its arrays."""
    x = Tensor(np.full(shape, 3.75))
    assert (int(x), float(x), complex(x), x.item(), bool(x)) == (3, 3.75, 3.75 + 0j, 3.75, True)
    for number in (int, float):
        with pytest.raises(TypeError, match="complex"):
            number(Tensor(np.full(shape, 1j)))
        for others in (np.ones((*shape, 2)), np.ones((*shape, 0))):
            with pytest.raises(TypeError):
                number(Tensor(others))
    assert not recwarn.list


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_a_tensor_is_a_list_of_lists_of_numbers(shape):
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    assert Tensor(array, requires_grad=True).tolist() == array.tolist()


def test_a_tensor_of_another_layout_is_no_list():
    quantized = Tensor(QuantizedArray(np.array([3, 5], np.uint8), 0.5, 1))
    with pytest.raises(
        ArgumentError, match=r"a quantized tensor of shape \[2\] is neither a number"
    ):
        quantized.tolist()
    assert quantized.dequantize().tolist() == [1.0, 2.0]


def test_a_tensor_without_dimensions_is_formatted_as_its_number():
    number = Tensor(np.array(1.25), requires_grad=True)
    assert f"{number:.1f} {number}" == "1.2 Tensor(array(1.25), requires_grad=True)"
    assert f"{Tensor(np.array(1 + 2j)).conj():.1f}" == "1.0-2.0j"
    assert f"{Tensor(np.array(7)):03d}" == "007"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{Tensor(np.ones(1)):.1f}"
    with pytest.raises(DataDependentOutputError, match="has no elements to read"):
        f"{Tensor(MetaArray((), 'float64')):.1f}"


def test_a_notebook_shows_what_a_tensor_is():
    shown = Tensor(np.arange(6, dtype=np.int16))._repr_html_()
    assert "<th>shape</th><td>6</td>" in shown
    assert "<th>dtype</th><td>int16</td>" in shown
    assert "<th>keys</th><td>CPU, ADInplaceOrView, AutogradCPU, AutocastCPU</td>" in shown
    assert "requires_grad" not in shown
    shown = Tensor(np.ones(()), requires_grad=True)._repr_html_()
    assert "one element" in shown
    assert "<pre>1.0</pre>" in shown
    assert "<th>requires_grad</th><td>True</td>" in shown


def test_a_tensor_can_be_referred_to_weakly(array):
    tensor = Tensor(array)
    reference = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert reference() is None


def test_a_tensor_is_a_key_by_itself_and_not_by_its_elements():
    x, y = Tensor(np.ones(2)), Tensor(np.ones(2))
    states = {x: "one", y: "other"}
    assert (states[x], states[y], len({x, y, x})) == ("one", "other", 2)
