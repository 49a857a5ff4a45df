"""Choose the operator of a request, and the kernel that runs it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

from opdispatch import DispatchKeySet, ForceDispatchKeyGuard, OperatorHandle
from opdispatch.arrays import LAYOUTS
from opdispatch.dispatch.operator_state import Resolution
from opdispatch_server.daemon.libraries.device_holders import HOST, takes_device
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_wire.calls import undecoded_arguments
from opdispatch_wire.modes import check_modes, local_keys_of
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import DecodeRemote

MOST_CHOICES = 4096
"""How many choices are remembered."""

# The choice for a call with a longer list or string is made anew each time.
_LONGEST = 16
# The same for calls with more arguments, and for lists nested three deep.
_MOST_ARGUMENTS = 64
_DEEPEST = 2
# How often a request is examined in a thread while libraries come and go.
_ATTEMPTS = 3
# A request with more bytes is examined in a thread, to keep the event loop responsive.
_MOST_BYTES = 64 * 1024


class Choice(NamedTuple):
    """An operator, the dispatch keys of the call, and the entry of its dispatch table for them."""

    op: OperatorHandle
    keys: DispatchKeySet
    resolution: Resolution
    writes: bool
    """Whether the operator writes to any of its arguments."""
    devices: Collection[str]
    """The devices of tensors, and those that other arguments name, except the host."""

    def name_kernel(
        self, request: execution_pb2.CallRequest, load_id: int, place: int | None
    ) -> None:
        """Set, in a request, the kernel to run: the one at ``place`` in the batch of ``load_id``.

        Without a place, the interpreter uses its own kernel for the dispatch keys.
        """
        request.operator = str(self.op.name)
        if place is None:
            request.ClearField("kernel")
            request.redispatch_keys = self.keys.bits
        else:
            request.kernel.load_id = load_id
            request.kernel.registration = place
            request.kernel.dispatch_keys = self.keys.bits


class CallChooser:
    """Chooses kernels, and caches its choices. For use in the event loop only.

    A choice is valid for all requests of one operator with arguments of the same kinds and dispatch
    keys, until the next publication: all ``_choices`` are of the dispatcher's epoch ``_epoch`` (see
    Note [Two epochs] in ``operator_registry``). The size of a tensor's data is checked here for the
    first request, and by the decoder for later ones.
    """

    def __init__(self, operators: OperatorRegistry) -> None:
        self._operators = operators
        self._epoch = -1
        self._choices: dict[Hashable, Choice] = {}

    def find(self, request: execution_pb2.CallRequest) -> Choice | None:
        """Return the remembered choice for a request, if any."""
        if self._operators.dispatcher.epoch != self._epoch:
            return None
        shape = _shape_of(request)
        return None if shape is None else self._choices.get(shape)

    async def choose(
        self, request: execution_pb2.CallRequest, find_remote: DecodeRemote | None = None
    ) -> Choice:
        """Return the choice for a request, valid in the step of the event loop that returns it.

        ``find_remote`` is called for each remote tensor, perhaps in another thread. Raises its
        errors, WireError, and those of dispatch: OperatorNotFoundError, ArgumentError,
        NoKernelError.
        """
        epoch = self._operators.dispatcher.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._choices.clear()
        shape = _shape_of(request)
        if shape is not None:
            known = self._choices.get(shape)
            if known is not None:
                return known
        if shape is None and request.ByteSize() > _MOST_BYTES:
            return await self._look_aside(request, find_remote)
        choice = self._look(request, find_remote)
        if shape is not None and self._operators.dispatcher.epoch == epoch:
            if len(self._choices) >= MOST_CHOICES:
                self._choices.clear()
            self._choices[shape] = choice
        return choice

    async def _look_aside(
        self, request: execution_pb2.CallRequest, find_remote: DecodeRemote | None
    ) -> Choice:
        for _ in range(_ATTEMPTS):
            epoch = self._operators.dispatcher.epoch
            choice = await asyncio.to_thread(self._look, request, find_remote)
            if self._operators.dispatcher.epoch == epoch:
                return choice
        return self._look(request, find_remote)

    def _look(self, request: execution_pb2.CallRequest, find_remote: DecodeRemote | None) -> Choice:
        check_modes(request)
        args, kwargs = undecoded_arguments(request, find_remote)
        with ForceDispatchKeyGuard(*local_keys_of(request)):
            dispatcher = self._operators.dispatcher
            name = str(parse_operator_name(request.operator))
            op = dispatcher.resolve_overload(name, args, kwargs)
            stack = op.bind(args, kwargs)
            if request.HasField("redispatch_keys"):
                keys = DispatchKeySet(request.redispatch_keys)
            else:
                keys = op.dispatch_keys(stack)
            writes, devices = op.schema.is_mutable, _devices_of(op, stack)
            return Choice(op, keys, op.lookup(keys), writes, devices)


def _devices_of(op: OperatorHandle, stack: Sequence[Any]) -> frozenset[str]:
    found = set()
    for argument, value in zip(op.schema.arguments, stack, strict=True):
        if takes_device(argument.type):
            found.add(str(value or HOST))
        elif argument.type.dispatches:
            items = value if isinstance(value, list | tuple) else [value]
            found.update(str(getattr(item, "device", HOST)) for item in items)
    return frozenset(device for device in found if device.partition(":")[0] != HOST)


def _shape_of(request: execution_pb2.CallRequest) -> Hashable | None:
    """Return the key under which a choice is remembered; None for an unusual request."""
    if request.HasField("local_keys") or request.modes:
        return None
    # A kernel's redispatch names the keys itself.
    keys = request.redispatch_keys if request.HasField("redispatch_keys") else None
    if len(request.args) > _MOST_ARGUMENTS or len(request.kwargs) > _MOST_ARGUMENTS:
        return None
    kinds = []
    for value in request.args:
        kind = _kind_of(value)
        if kind is None:
            return None
        kinds.append(kind)
    if not request.kwargs:
        return request.operator, keys, tuple(kinds)
    named = []
    for name, value in request.kwargs.items():
        kind = _kind_of(value)
        if kind is None:
            return None
        named.append((name, kind))
    return request.operator, keys, tuple(kinds), frozenset(named)


def _kind_of(value: values_pb2.Value, depth: int = 0) -> Hashable | None:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        tensor = value.tensor
        # A single element may stand for a number, which selects an overload by its dtype; a uint64
        # by its value, too, since an int has 63 bits. Another device has other keys.
        dtype = tensor.dtype if math.prod(tensor.shape) == 1 else ""
        if dtype == "uint64":
            return None
        return tensor.dispatch_keys, tensor.device, tensor.requires_grad, dtype
    if kind == "packed":
        return kind, value.packed.dtype
    if kind in ("none", "boolean", "integer", "floating", "complex"):
        return str(kind)
    if kind == "generator":
        return kind, value.generator.device, value.generator.dispatch_keys
    if kind == "text":
        return (kind, value.text) if len(value.text) <= _LONGEST else None
    if kind is not None and (layout := LAYOUTS.get(kind)) is not None:
        whole = getattr(value, kind)
        device = getattr(whole, layout.elements_name).device
        return kind, whole.dispatch_keys, device, whole.requires_grad
    if kind == "list" and len(value.list.items) <= _LONGEST and depth < _DEEPEST:
        kinds = [_kind_of(item, depth + 1) for item in value.list.items]
        return None if None in kinds else (kind, tuple(kinds))
    return None
