"""Parts of tensors on devices: all on one, and never fetched for nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DeviceError,
    NestedArray,
    Tensor,
    nested_tensor,
    nested_tensor_from_jagged,
    sparse_coo_tensor,
    sparse_csr_tensor,
)
from opdispatch.arrays import find_layout
from opdispatch_wire.errors import WireError
from opdispatch_wire.values import value_to_proto
from tests.simulated_accelerator import Accelerator

ONE, OTHER = "privateuseone:0", "privateuseone:1"
VALUES, OFFSETS = np.arange(3.0), np.array([0, 1, 3])


def on(device: str, array: Any) -> Any:
    return Tensor(np.asarray(array)).to(device)


def test_a_nested_tensor_is_made_of_what_is_on_the_device(accelerator: Accelerator):
    made = nested_tensor_from_jagged(on(OTHER, VALUES), on(OTHER, OFFSETS))
    assert (made.device, made.offsets().device, made.shape) == (OTHER, OTHER, (2, None))
    components = [each.numpy().tolist() for each in made.to("cpu").unbind()]
    assert components == [[0], [1, 2]]


def test_an_empty_array_of_offsets_is_one_of_integers_there_too(accelerator: Accelerator):
    with pytest.raises(ArgumentError, match=r"^offsets is empty; expected one entry more than"):
        nested_tensor_from_jagged(on(ONE, VALUES), on(ONE, []))


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (lambda: nested_tensor_from_jagged(on(ONE, VALUES), OFFSETS), ONE, "cpu"),
        (lambda: nested_tensor_from_jagged(VALUES, on(ONE, OFFSETS)), "cpu", ONE),
        (lambda: nested_tensor_from_jagged(on(ONE, VALUES), on(OTHER, OFFSETS)), ONE, OTHER),
        (lambda: NestedArray(VALUES, on(ONE, OFFSETS).array), "cpu", ONE),
        (lambda: nested_tensor([VALUES, on(ONE, VALUES)]), "cpu", ONE),
        (lambda: nested_tensor([on(OTHER, VALUES), on(ONE, VALUES)]), OTHER, ONE),
        (lambda: sparse_coo_tensor([[0, 1, 2]], on(ONE, VALUES)), "cpu", ONE),
        (lambda: sparse_coo_tensor(on(ONE, [[0, 1, 2]]), VALUES, (3,)), ONE, "cpu"),
        (lambda: sparse_csr_tensor([0, 1], on(ONE, [0]), [1.0]), "cpu", ONE),
    ],
)
def test_parts_on_two_devices_are_the_error_of_all_operators(
    accelerator: Accelerator, make: Any, one: str, other: str
):
    words = f"^Expected all tensors to be on the same device, .* two devices, {one} and {other}!"
    with pytest.raises(DeviceError, match=words):
        make()
    assert accelerator.downloads == 0


def test_there_are_no_sparse_tensors_on_it(accelerator: Accelerator):
    for size in (None, (3, 3)):
        with pytest.raises(DeviceError, match=f"sparse arrays are not supported on {ONE!r}"):
            sparse_coo_tensor(on(ONE, [[0], [1]]), on(ONE, [1.0]), size)
        with pytest.raises(DeviceError, match=f"sparse arrays are not supported on {ONE!r}"):
            sparse_csr_tensor(on(ONE, [0, 1]), on(ONE, [0]), on(ONE, [1.0]), size)


def test_parts_that_have_come_to_be_on_two_devices_are_not_sent(accelerator: Accelerator):
    array = nested_tensor([VALUES]).array
    object.__setattr__(array, "offsets", on(ONE, array.offsets).array)
    with pytest.raises(WireError, match=rf"^\$: Expected all tensors .* cpu and {ONE}!"):
        value_to_proto(array)


@pytest.mark.parametrize("device", ["cpu", "meta", OTHER])
def test_parts_that_have_come_to_be_on_two_devices_are_not_moved(
    accelerator: Accelerator, device: str
):
    array = nested_tensor([VALUES]).array
    object.__setattr__(array, "values", on(ONE, array.values).array)
    with pytest.raises(DeviceError, match=f"^Expected all tensors .* {ONE} and cpu!"):
        Tensor(array).to(device)
    object.__setattr__(array, "values", [1.0])
    with pytest.raises(ArgumentError, match="values is of type list; expected a dense array"):
        Tensor(array).to(device)


def test_read_only_view_of_an_unwritable_array_is_the_array(accelerator: Accelerator):
    array = nested_tensor([VALUES]).to(ONE).array
    before = accelerator.downloads
    assert find_layout(type(array)).read_only(array) is array
    assert accelerator.downloads == before


def test_driver_error_while_reading_offsets_becomes_device_error(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
):
    def fail(array: Any) -> Any:
        raise RuntimeError("no answer")

    values, offsets = on(ONE, VALUES), on(ONE, OFFSETS)
    monkeypatch.setattr(accelerator, "to_host", fail)
    with pytest.raises(DeviceError, match=f"{ONE!r} raised RuntimeError: no answer"):
        nested_tensor_from_jagged(values, offsets)


def test_move_to_meta_fetches_no_elements(accelerator: Accelerator):
    dense, nested = on(ONE, VALUES), nested_tensor_from_jagged(on(ONE, VALUES), on(ONE, OFFSETS))
    downloads = accelerator.downloads
    metas = [each.to("meta") for each in (dense, nested)]
    assert [(each.device, each.shape, each.dtype) for each in metas] == [
        ("meta", (3,), VALUES.dtype),
        ("meta", (2, None), VALUES.dtype),
    ]
    assert accelerator.downloads == downloads
