"""Tensors of other layouts than the dense one: what they are made of, and what they answer."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import scipy.sparse

from opdispatch import (
    ArgumentError,
    DeviceError,
    DispatchKey,
    DispatchKeySet,
    Tensor,
    nested_tensor_from_jagged,
    quantize_per_tensor,
    register_backend,
    sparse_coo_tensor,
    sparse_csr_tensor,
)
from opdispatch.arrays import copy_of, find_key_bits, find_layout, key_bits_of
from tests.simulated_accelerator import Accelerator
from tests.unit.layout_tensors import ALL, DENSE, coo, csr, nested, quantized
from tests.waits import LONGEST_WAIT

K = DispatchKey


@pytest.mark.parametrize(
    ("make", "functionality", "layout", "is_what"),
    [
        (coo, K.SparseCPU, "sparse_coo", "is_sparse"),
        (csr, K.SparseCsrCPU, "sparse_csr", "is_sparse_csr"),
        (quantized, K.QuantizedCPU, "strided", "is_quantized"),
        (nested, K.NestedTensorCPU, "jagged", "is_nested"),
    ],
)
def test_a_tensor_has_the_keys_of_its_layout(make, functionality, layout, is_what):
    tensor = make()
    assert functionality in tensor.key_set
    assert K.CPU not in tensor.key_set
    assert K.AutogradCPU in tensor.key_set
    assert (K.AutogradNestedTensor in tensor.key_set) == (make is nested)
    assert (tensor.layout, tensor.device, tensor.ndim) == (layout, "cpu", len(tensor.shape))
    said = [
        name
        for name in ("is_sparse", "is_sparse_csr", "is_quantized", "is_nested")
        if getattr(tensor, name)
    ]
    assert said == [is_what]


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (coo, K.SparseCPU),
        (csr, K.SparseCsrCPU),
        (quantized, K.QuantizedCPU),
        (nested, K.NestedTensorCPU),
    ],
)
def test_a_plain_array_has_the_key_of_its_layout_alone(make, key):
    assert list(DispatchKeySet(key_bits_of(make().array))) == [key]


def test_a_dense_tensor_is_strided_and_nothing_else():
    tensor = Tensor(DENSE)
    assert tensor.layout == "strided"
    flags = ("is_sparse", "is_sparse_csr", "is_quantized", "is_nested")
    assert not any(getattr(tensor, flag) for flag in flags)
    assert tensor.to_dense() is tensor
    assert [item.shape for item in tensor.unbind()] == [(3,), (3,)]
    assert tensor.dequantize().dtype == np.float32


@pytest.mark.parametrize(
    "array",
    [
        scipy.sparse.coo_array(DENSE),
        scipy.sparse.coo_matrix(DENSE),
        scipy.sparse.csr_array(DENSE),
        scipy.sparse.csr_matrix(DENSE),
    ],
)
def test_scipys_sparse_arrays_are_tensors_as_they_are(array):
    tensor = Tensor(array, requires_grad=True)
    assert tensor.array is array
    assert tensor.requires_grad
    assert (tensor.shape, tensor.dtype, tensor.size) == ((2, 3), np.float64, 6)
    np.testing.assert_array_equal(tensor.to_dense().detach(), DENSE)


def test_sparse_arrays_of_other_formats_are_refused_with_the_way_to_one():
    with pytest.raises(TypeError, match=r"csc_array; convert it with tocoo\(\) or tocsr\(\)"):
        Tensor(scipy.sparse.csc_array(DENSE))


def test_sparse_and_dense_tensors_become_each_other():
    for tensor in (Tensor(DENSE).to_sparse(), csr().to_sparse(), coo()):
        assert tensor.is_sparse
        assert tensor.to_sparse() is tensor
        np.testing.assert_array_equal(tensor.to_dense(), DENSE)
    for tensor in (Tensor(DENSE).to_sparse_csr(), coo().to_sparse_csr(), csr()):
        assert tensor.is_sparse_csr
        assert tensor.to_sparse_csr() is tensor
        np.testing.assert_array_equal(tensor.to_dense(), DENSE)


def test_a_sparse_tensor_gives_its_parts():
    tensor = coo()
    np.testing.assert_array_equal(tensor.indices(), [[0, 1, 1], [1, 0, 2]])
    assert tensor.indices().dtype == np.int64
    np.testing.assert_array_equal(tensor.values(), [2, 3, 4])
    tensor = csr()
    np.testing.assert_array_equal(tensor.crow_indices(), [0, 1, 3])
    np.testing.assert_array_equal(tensor.col_indices(), [1, 0, 2])
    np.testing.assert_array_equal(tensor.values(), [2, 3, 4])
    assert np.shares_memory(tensor.values().array, tensor.array.data)


@pytest.mark.parametrize("make", [coo, csr])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_items_of_a_sparse_matrix_are_sparse_vectors(make, dim):
    items = make().unbind(dim)
    for item, want in zip(items, np.moveaxis(DENSE, dim, 0), strict=True):
        assert item.layout == "sparse_coo"
        np.testing.assert_array_equal(item.to_dense(), want)


def test_items_of_a_sparse_tensor_hold_their_values_in_order():
    x = sparse_coo_tensor([[1, 0, 1, 1], [2, 0, 0, 2]], [1.0, 2.0, 3.0, 4.0], (2, 3))
    np.testing.assert_array_equal(x.unbind()[1]._indices(), [[2, 0, 2]])
    np.testing.assert_array_equal(x.unbind()[1]._values(), [1, 3, 4])
    numbers = x.unbind()[1].unbind()
    assert [each.layout for each in numbers] == ["strided"] * 3
    assert [float(each) for each in numbers] == [3, 0, 5]


def test_items_of_a_quantized_tensor_are_views_of_its_integers():
    x = quantized()
    item = x.unbind(1)[2]
    assert (item.q_scale(), item.q_zero_point()) == (x.q_scale(), x.q_zero_point())
    x.int_repr().array[0, 2] += 1
    np.testing.assert_array_equal(item.int_repr(), np.asarray(x.int_repr())[:, 2])
    assert x.to_dense() is x


def test_values_of_one_place_are_added_up():
    tensor = sparse_coo_tensor([[1, 0, 1]], [1.0, 2.0, 3.0])
    assert tensor.shape == (2,)
    np.testing.assert_array_equal(tensor.indices(), [[1, 0, 1]])
    np.testing.assert_array_equal(tensor.to_dense(), [2, 4])
    together = tensor.coalesce()
    np.testing.assert_array_equal(together.indices(), [[0, 1]])
    np.testing.assert_array_equal(together.values(), [2, 4])
    assert together.coalesce().array is together.array


def test_a_sparse_tensor_may_have_more_dimensions_and_no_values():
    tensor = sparse_coo_tensor([[0], [1], [2]], [5.0], (2, 2, 3))
    assert float(np.asarray(tensor.to_dense())[0, 1, 2]) == 5
    empty = sparse_coo_tensor(np.empty((2, 0), np.int64), [], (2, 3))
    np.testing.assert_array_equal(empty.to_dense(), np.zeros((2, 3)))
    np.testing.assert_array_equal(
        sparse_csr_tensor([0, 0], [], [], (1, 2)).to_dense(), np.zeros((1, 2))
    )
    assert sparse_csr_tensor([0, 1, 2], [4, 0], [1.0, 2.0]).shape == (2, 5)


def test_a_quantized_tensor_gives_its_integers_and_its_real_numbers():
    tensor = quantized()
    np.testing.assert_array_equal(tensor.int_repr(), [[10, 14, 10], [16, 10, 18]])
    assert tensor.int_repr().dtype == tensor.dtype == np.uint8
    assert (tensor.q_scale(), tensor.q_zero_point()) == (0.5, 10)
    np.testing.assert_array_equal(tensor.dequantize(), DENSE.astype(np.float32))
    assert tensor.dequantize().dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("quint8", np.uint8), ("qint8", np.int8), ("qint32", np.int32), (np.int8, np.int8)],
)
def test_quantization_rounds_half_to_even_and_stops_at_the_limits(dtype, wanted):
    info = np.iinfo(wanted)
    x = np.array([0.5, 1.5, 2.5, 1e30, -1e30, np.inf, -np.inf], np.float32)
    integers = quantize_per_tensor(x, 1.0, 0, dtype).int_repr()
    assert integers.dtype == wanted
    low = max(info.min, 0) if wanted == np.uint8 else info.min
    assert np.asarray(integers).tolist() == [0, 2, 2, info.max, low, info.max, low]


def test_a_nested_tensor_gives_its_components():
    tensor = nested()
    assert tensor.shape == (2, None, 3)
    assert (tensor.ndim, tensor.size) == (3, 9)
    assert [each.shape for each in tensor.unbind()] == [(2, 3), (1, 3)]
    np.testing.assert_array_equal(tensor.offsets(), [0, 2, 3])
    assert tensor.values().shape == (3, 3)
    padded = tensor.to_padded_tensor(-1)
    np.testing.assert_array_equal(padded, [np.ones((2, 3)), [[0, 0, 0], [-1, -1, -1]]])


def test_a_nested_tensor_shares_what_it_is_made_of():
    values = np.arange(4.0)
    tensor = nested_tensor_from_jagged(values, np.array([0, 0, 3, 4]))
    assert tensor.values().array is values
    assert [np.asarray(each).tolist() for each in tensor.unbind()] == [[], [0, 1, 2], [3]]


@pytest.mark.parametrize("make", ALL)
def test_layout_tensor_refuses_dlpack_export(make):
    with pytest.raises(BufferError, match="on cpu cannot be exported by DLPack"):
        np.from_dlpack(make())


@pytest.mark.parametrize("make", ALL)
def test_a_copy_shares_nothing_and_a_read_only_view_everything(make):
    array = make().array
    layout = find_layout(type(array))
    copy, view = copy_of(array), layout.read_only(array)
    for mine, copied, seen in zip(
        layout.parts(array), layout.parts(copy), layout.parts(view), strict=True
    ):
        np.testing.assert_array_equal(mine, copied)
        np.testing.assert_array_equal(mine, seen)
        assert not np.shares_memory(mine, copied)
    assert np.shares_memory(layout.elements(view), layout.elements(array))
    assert not layout.elements(view).flags.writeable
    assert layout.elements(array).flags.writeable
    assert layout.facts(array) == layout.facts(copy) == layout.facts(view)
    assert layout.nbytes(array) == sum(part.nbytes for part in layout.parts(array))


@pytest.mark.parametrize("make", ALL)
def test_a_tensor_says_what_it_consists_of(make):
    tensor = make()
    layout = find_layout(type(tensor.array))
    for name in layout.part_names:
        assert f"{name}=array(" in repr(tensor)
        assert f"{name}=array(" in tensor._repr_html_()
    assert repr(tensor).endswith(f"layout='{layout.name}')")
    assert f"<td>{tensor.layout}</td>" in tensor._repr_html_()


@pytest.mark.parametrize("make", [quantized, nested])
def test_quantized_and_nested_tensors_go_to_any_device_and_back(make):
    with_device = register_backend(Accelerator())
    try:
        tensor = make()
        assert tensor.to("cpu") is tensor
        there = tensor.to("privateuseone:1")
        assert there.device == "privateuseone:1"
        assert there.key_set.highest_backend_key.name == "PrivateUse1"
        assert there.layout == tensor.layout
        back = there.to("cpu")
        assert repr(back) == repr(tensor)
        with pytest.raises(
            DeviceError, match="sparse arrays are not supported on 'privateuseone:0'"
        ):
            coo().to("privateuseone:0")
    finally:
        with_device.close()


def test_sparse_tensors_are_nowhere_but_on_the_host_and_on_a_gpu():
    with pytest.raises(DeviceError, match="sparse arrays are not supported on 'meta'"):
        coo().to("meta")


def test_a_nested_tensor_without_elements_has_its_shape_and_keys():
    """torch: ``torch.nested.nested_tensor(..., layout=torch.jagged).to("meta")``."""
    there = nested().to("meta")
    assert (there.shape, there.dtype) == (nested().shape, nested().dtype)
    assert there.device == there.offsets().device == "meta"
    assert there.key_set.has(K.NestedTensorMeta)
    with pytest.raises(DeviceError, match="has no elements to copy"):
        there.to("cpu")
    with pytest.raises(DeviceError, match="at least two devices, cpu and meta"):
        nested_tensor_from_jagged(nested().values(), there.offsets())


@pytest.mark.parametrize(
    ("name", "module", "keys"),
    [
        ("coo_matrix", "cupyx.scipy.sparse._coo", [K.SparseCUDA]),
        ("csr_matrix", "cupyx.scipy.sparse._csr", [K.SparseCsrCUDA]),
        ("csr_matrix", "scipy.sparse", [K.SparseCsrCPU]),
        ("coo_array", "scipy.sparse._coo", [K.SparseCPU]),
        ("coo_array", "sparse", None),
        ("csc_array", "scipy.sparse._csc", None),
        ("coo_array", "scipy.sparsely", None),
    ],
)
def test_sparse_arrays_are_known_by_the_names_of_their_classes(name, module, keys):
    bits = find_key_bits(type(name, (), {"__module__": module})())
    assert (None if bits is None else list(DispatchKeySet(bits))) == keys


def test_scipy_is_imported_when_it_is_needed_and_named_when_it_is_not_there():
    program = (
        "import sys\n"
        "import numpy as np, opdispatch\n"
        "assert not any(name.startswith('scipy') for name in sys.modules), 'scipy is imported'\n"
        "sys.modules['scipy'] = None\n"
        "try:\n"
        "    opdispatch.sparse_coo_tensor([[0]], [1.0], (1,))\n"
        "except opdispatch.DeviceError as error:\n"
        "    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    ).stdout
    assert said.startswith("this process has no scipy.sparse for sparse arrays")
    assert "install scipy" in said


def test_a_tensor_of_one_element_is_a_number_in_any_layout():
    zero = quantize_per_tensor(0.0, 0.5, 10, "quint8")  # whose integer is 10
    assert (bool(zero), float(zero), zero.item()) == (False, 0.0, 0.0)
    for one in (Tensor(np.array([[3.0]])).to_sparse(), Tensor(np.array([[3.0]])).to_sparse_csr()):
        assert (bool(one), one.item()) == (True, 3.0)
    assert not sparse_coo_tensor(np.zeros((2, 0), int), np.zeros(0), (1, 1))


def test_the_bytes_of_a_sparse_coo_tensor_are_counted_without_a_copy():
    places = np.arange(500_000)
    array = scipy.sparse.coo_array((np.ones(500_000), (places, places)))
    layout = find_layout(type(array))
    expected = sum(part.nbytes for part in layout.parts(array))
    tracemalloc.start()
    try:
        assert layout.nbytes(array) == expected
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_coordinates_of_two_types_are_counted_as_they_are_sent():
    array = scipy.sparse.coo_array(np.eye(3))
    array.coords = (array.coords[0].astype(np.int32), array.coords[1].astype(np.int64))
    layout = find_layout(type(array))
    assert layout.nbytes(array) == sum(part.nbytes for part in layout.parts(array))
    array.coords = (array.coords[0], array.coords[1][:2])
    with pytest.raises(ArgumentError, match="one array of all indices cannot be made"):
        layout.nbytes(array)
