"""The key Fake: tensors that have a device but no elements.

PyTorch reserves the key for other packages, such as torchdistX (``fake.cc``); its own fake tensors
are a mode in Python (``torch/_subclasses/fake_tensor.py``). The key is below Autograd, Autocast and
Python, which treat fake tensors like others. The fallback runs the operator's Meta kernel. The
results are fake tensors on the requested device, or else on the arguments' common device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import (
    FakeArray,
    MetaArray,
    canonical_device,
    common_device,
    device_of,
    find_key_bits,
    split_device,
)
from opdispatch.errors import ArgumentError, NoKernelError
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.fake_impl import fake_call
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import DEVICE, TENSOR, ListType, OptionalType, is_generator
from opdispatch.tensors.generator import Generator, default_generator
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_META = DispatchKeySet.of(to_runtime_key(DispatchKey.Dense, BackendComponent.Meta))
_FAKE = DispatchKeySet.of(DispatchKey.Fake)
_DEVICES = (DEVICE, OptionalType(DEVICE))
_INDICES = ListType(OptionalType(TENSOR))

ALLOWS_REAL: ContextVar[bool] = ContextVar("opdispatch_fake_allows_real", default=False)
"""Whether calls with fake tensors may also have tensors with elements."""
DRAWS: ContextVar[bool] = ContextVar("opdispatch_fake_draws", default=False)
"""Whether calls advance their generators. ``deferred_init`` sets it, to record their states."""


def run_on_meta(op: OperatorHandle, /, *args: Any, **kwargs: Any) -> Any:
    """Run an operator's Meta kernel and return fake results: the backend fallback for Fake.

    Raises ArgumentError for a tensor with elements, DeviceError for tensors on two devices,
    NoKernelError for an operator without a kernel for Meta, and the errors of that kernel.
    """
    signature = op.call_signature
    schema = signature.schema
    stack = signature.bind(args, kwargs)
    arguments = _Arguments(op, schema, stack)
    included, excluded = local_dispatch_key_set()
    results = arguments.on_meta
    with ForceDispatchKeyGuard(included - _FAKE, excluded | _FAKE):
        try:
            with fake_call(str(op.name)):
                op.redispatch_boxed(_META, results)
        except NoKernelError as error:
            if error.facts.get("operator") != str(op.name) or error.facts.get("key") != "Meta":
                raise
            raise op.no_kernel_error(
                "Meta",
                f"{op.name} was called with fake tensors, and has no kernel for Meta that returns "
                f"fake results: register one with @opdispatch.register_fake({str(op.name)!r})",
            ) from None
    return signature.unbox_returns(
        [
            arguments.fake(value, arguments.base_of(schema, place))
            for place, value in enumerate(results)
        ]
    )


class _Arguments:
    """Conversion of one call's arguments to meta arrays, and of its results to fake arrays."""

    def __init__(self, op: OperatorHandle, schema: FunctionSchema, stack: list[Any]) -> None:
        self._operator = str(op.name)
        self._stack = stack
        # By the id of each meta argument: the argument itself, to keep its id in use, and the fake
        # tensor that it replaces.
        self._originals: dict[int, tuple[Any, Any]] = {}
        asked = None
        bound: list[Any] = []
        self.on_meta: list[Any] = []
        for argument, value in zip(schema.arguments, stack, strict=True):
            if argument.type in _DEVICES:
                asked = value if asked is None else asked
                self.on_meta.append("meta" if value is not None else None)
            elif isinstance(value, Generator) and not DRAWS.get():
                self.on_meta.append(value.clone_state())
            else:
                bound += _devices_in(value, may_be_on_host=argument.type == _INDICES)
                self.on_meta.append(self._stripped(value))
        found = common_device(self._operator, *bound)
        has_tensors = any(find_key_bits(each) is not None for each in bound)
        device = (found if has_tensors else None) if asked is None else str(asked)
        self.device = device or "cpu"
        if DRAWS.get():
            self.on_meta = [
                default_generator(self.device) if value is None and is_generator(a.type) else value
                for a, value in zip(schema.arguments, self.on_meta, strict=True)
            ]
        if not has_tensors:  # a factory function; the device's own kernel is used
            self.on_meta = [
                "meta" if argument.type in _DEVICES else value
                for argument, value in zip(schema.arguments, self.on_meta, strict=True)
            ]

    def _stripped(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._stripped(each) for each in value]
        if value is None or find_key_bits(value) is None:
            return value
        array = value.array if isinstance(value, Tensor) else value
        if type(array) is FakeArray or type(value) is Tensor:
            self._check_fake(value, array)
            plain = MetaArray(tuple(array.shape), array.dtype)
            stripped: Any = Tensor(plain) if isinstance(value, Tensor) else plain
            self._originals[id(stripped)] = stripped, value
            return stripped
        self._check_fake(value, array)
        return value if _is_number(value) else MetaArray(tuple(array.shape), array.dtype)

    def _check_fake(self, value: Any, array: Any) -> None:
        if isinstance(array, MetaArray) or ALLOWS_REAL.get() or _is_number(value):
            return
        raise ArgumentError(
            f"{self._operator} was called with a tensor that has elements, of shape "
            f"{list(array.shape)} and dtype {array.dtype}; expected fake tensors",
            hint="convert it with FakeTensorMode.from_tensor, or allow it with "
            "FakeTensorMode(allow_non_fake_inputs=True)",
            operator=self._operator,
        )

    def base_of(self, schema: FunctionSchema, place: int) -> Any:
        """Return the fake array whose elements the result at ``place`` shares, by the schema."""
        alias = schema.returns[place].alias_info if place < len(schema.returns) else None
        if alias is None:
            return None
        sets = alias.before_set | (alias.contained.before_set if alias.contained else frozenset())
        for argument, value in zip(schema.arguments, self._stack, strict=True):
            given = argument.alias_info
            if given is not None and sets & given.before_set:
                array = value.array if isinstance(value, Tensor) else value
                if isinstance(array, FakeArray):
                    return array if array.base is None else array.base
        return None

    def fake(self, value: Any, base: Any) -> Any:
        """Return the fake array or tensor of a meta result; the argument itself if it is one."""
        if isinstance(value, list | tuple):
            return [self.fake(each, base) for each in value]
        if (known := self._originals.get(id(value))) is not None:
            return known[1]
        if value is None or find_key_bits(value) is None or split_device(self.device)[0] == "meta":
            return value
        array = value.array if isinstance(value, Tensor) else value
        made = FakeArray(tuple(array.shape), array.dtype, self.device, base)
        return Tensor(made) if isinstance(value, Tensor) else made


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a zero-dimensional host array, such as a NumPy scalar."""
    array = value.array if isinstance(value, Tensor) else value
    return isinstance(array, np.ndarray | np.generic) and not array.shape


def _devices_in(value: Any, *, may_be_on_host: bool) -> Sequence[Any]:
    values = value if isinstance(value, list) else [value]
    found = [
        each.array if isinstance(each, Tensor) else each
        for each in values
        if each is not None and find_key_bits(each) is not None
    ]
    return [each for each in found if not (may_be_on_host and device_of(each) == "cpu")]


def make_fake(array: Any) -> FakeArray:
    """Return a fake array with the shape, dtype and device of an array with elements."""
    if isinstance(array, FakeArray):
        return array
    return FakeArray(tuple(array.shape), array.dtype, canonical_device(device_of(array)))
