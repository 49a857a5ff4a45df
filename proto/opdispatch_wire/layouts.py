"""Tensors of layouts other than strided <-> the corresponding kinds of ``v1.Value``.

    array, parts, facts  ->  fill_layout          a dense Tensor for each part
    the decoder             layout_from_parts  <-  the decoded parts
    the router              WireLayoutTensor       its parts are WireTensors

The rules for the parts are those of the layouts, in ``opdispatch.arrays``. Shapes and dtypes are
checked wherever such a tensor is examined. Index elements, which locate other elements, are checked
by the side that decodes them, in memory that the sender can no longer change. A tensor is also
checked before it is sent, so that its maker gets the error rather than its receiver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from opdispatch import arrays
from opdispatch.arrays import COMPONENTS, LAYOUTS, Facts, Layout, find_layout, register_tensor_type
from opdispatch.errors import ArgumentError, DeviceError
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor, key_set_of_backend
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import (
    TensorMemory,
    WireTensor,
    check_differentiable,
    fill_tensor,
    key_bits_elsewhere,
    placed_error,
    refuse_masked,
)
from opdispatch_wire.v1 import values_pb2


def layout_of(value: Any) -> Layout | None:
    """Return the layout of an array or Tensor; None if it is strided or not a tensor."""
    return find_layout(type(value.array if isinstance(value, Tensor) else value))


def fill_layout(
    message: values_pb2.Value,
    value: Any,
    layout: Layout,
    *,
    at: str,
    memory: TensorMemory | None = None,
) -> None:
    """Encode a tensor of that layout into an empty message that is already in place.

    Raises WireError, which starts with the place ``at``.
    """
    array = value.array if isinstance(value, Tensor) else value
    parts, facts = _checked_parts(array, layout, at)
    sent = getattr(message, layout.name)
    sent.SetInParent()
    for name in layout.fact_names:
        if name == "shape":
            sent.shape.extend(facts.shape)
        else:
            setattr(sent, name, getattr(facts, name))
    for name, part in zip(layout.part_names, parts, strict=True):
        fill_tensor(getattr(sent, name), part, at=f"{at}.{name}", memory=memory)
    if isinstance(value, Tensor):
        if not value.key_bits:
            raise WireError(f"{at}: a tensor without dispatch keys cannot be sent")
        if value.requires_grad or value.key_bits != layout.key_bits_of(array):
            sent.dispatch_keys = key_bits_elsewhere(value)
            sent.requires_grad = value.requires_grad


def refuse_misfits(value: Any, *, at: str) -> None:
    """Raise WireError for a tensor whose parts do not match, or cannot be sent.

    A strided tensor has no parts.
    """
    layout = layout_of(value)
    if layout is not None:
        _checked_parts(value.array if isinstance(value, Tensor) else value, layout, at)


def _checked_parts(array: Any, layout: Layout, at: str) -> tuple[tuple[Any, ...], Facts]:
    """Return the parts and facts, checked. Raises WireError, which starts with the place ``at``."""
    try:
        # The array's library may allow more, such as a sparse_csr vector, and a kernel may have
        # changed the parts since the array was made.
        parts, facts = layout.checked_parts(array)
    except DeviceError as error:
        raise placed_error(error, at) from error
    except ArgumentError as error:
        raise WireError(
            f"{at} is not a valid {layout.name} tensor: {error.message}", hint=error.hint
        ) from error
    for name, part in zip(layout.part_names, parts, strict=True):
        refuse_masked(part, at=f"{at}.{name}")
    return parts, facts


def layout_from_parts(message: values_pb2.Value, name: str, parts: Sequence[Any], at: str) -> Any:
    """Return an array, or a Tensor, of the layout ``name`` over decoded parts.

    Raises WireError, which starts with the place of the mismatch, or with ``at``.
    """
    layout, sent = LAYOUTS[name], getattr(message, name)
    if any(isinstance(part, Tensor) for part in parts):
        raise _part_with_keys(at)
    _check_devices([arrays.device_of(part) for part in parts], at)
    mine = [
        _own(part)
        if part_name in layout.index_parts and getattr(sent, part_name).HasField("memory")
        else part
        for part_name, part in zip(layout.part_names, parts, strict=True)
    ]
    facts = _facts_of(sent, layout)
    if sent.requires_grad:
        check_differentiable(parts[layout.part_names.index(layout.elements_name)].dtype.name, at=at)
    try:
        array = arrays.checked_array(layout, tuple(mine), facts, f"{at}.")
    except DeviceError as error:
        raise placed_error(error, at) from error
    except ArgumentError as error:
        raise WireError(error.message, hint=error.hint) from error
    bits = sent.dispatch_keys
    if sent.requires_grad or bits not in (0, layout.key_bits_of(array)):
        keys = DispatchKeySet(bits) if bits else None
        return Tensor(array, keys=keys, requires_grad=sent.requires_grad)
    return array


class WireLayoutTensor:
    """A tensor of such a layout as received, its parts checked but not decoded.

    The dispatcher treats it as a tensor, to choose a kernel; ``message`` can be forwarded
    unchanged.
    """

    __slots__ = (
        "device",
        "dtype",
        "key_bits",
        "layout",
        "message",
        "nbytes",
        "requires_grad",
        "shape",
    )

    def __init__(
        self, message: values_pb2.Value, name: str, parts: Sequence[Any], at: str = "$"
    ) -> None:
        """Raise WireError if the parts do not match."""
        self.layout, sent = LAYOUTS[name], getattr(message, name)
        for part in parts:
            if isinstance(part, WireTensor) and not part.is_plain:
                raise _part_with_keys(at)
        self.device = _check_devices([getattr(part, "device", "cpu") for part in parts], at)
        facts = _facts_of(sent, self.layout)
        try:
            self.layout.check_parts(tuple(parts), facts, f"{at}.")
        except ArgumentError as error:
            raise WireError(error.message, hint=error.hint) from error
        self.message = message
        self.shape = self.layout.shape_of(parts, facts)
        elements = parts[self.layout.part_names.index(self.layout.elements_name)]
        self.dtype: np.dtype[Any] = elements.dtype
        if sent.requires_grad:
            check_differentiable(self.dtype.name, at=at)
        self.nbytes = sum(math.prod(part.shape) * part.dtype.itemsize for part in parts)
        self.requires_grad: bool = sent.requires_grad
        self.key_bits = sent.dispatch_keys or _default_key_bits(self.layout, self.device, sent)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __opdispatch_fill_value__(self, message: values_pb2.Value, at: str) -> None:
        message.CopyFrom(self.message)

    def __repr__(self) -> str:
        return f"WireLayoutTensor({self.layout.name}, {self.dtype}, shape={list(self.shape)})"


register_tensor_type(WireLayoutTensor, described_as="a tensor")


def _own(part: Any) -> Any:
    """Return a copy that no other process can write to."""
    if not isinstance(part, np.ndarray):
        return part  # decoding has already copied it to its device
    copy = part.copy()
    copy.flags.writeable = part.flags.writeable
    return copy


def _part_with_keys(at: str) -> WireError:
    return WireError(
        f"{at} has a part with dispatch keys; expected them on the tensor as a whole only"
    )


def _default_key_bits(layout: Layout, device: str, sent: Any) -> int:
    """Return the key bits of a tensor whose message has none, as ``layout_from_parts`` does."""
    component = COMPONENTS[device.partition(":")[0]]
    if not sent.requires_grad:
        return layout.key_bits(component)
    return key_set_of_backend(component, layout.functionality).bits


def _facts_of(sent: Any, layout: Layout) -> Facts:
    found: dict[str, Any] = {name: getattr(sent, name) for name in layout.fact_names}
    if "shape" in found:
        found["shape"] = tuple(found["shape"])
    return Facts(**found)


def _check_devices(devices: Sequence[str], at: str) -> str:
    """Return the common device of all parts. Raises WireError if there are two."""
    if len(set(devices)) > 1:
        raise WireError(
            f"{at} has parts on {' and '.join(sorted(set(devices)))}; expected one device"
        )
    return devices[0]
