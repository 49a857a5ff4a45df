"""The kernel that a call names, ready to be called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from opdispatch import Dispatcher, DispatchKeySet, KernelFunction, OperatorHandle, OperatorName
from opdispatch.boxing.signature import Signature
from opdispatch.errors import WaitTimeoutError
from opdispatch_server.blame.flight_record import KERNEL, Subject
from opdispatch_server.metrics.call_counts import Series
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_wire.errors import WireError
from opdispatch_wire.plain_calls import may_be_plain
from opdispatch_wire.planned_calls import may_be_planned
from opdispatch_wire.v1 import execution_pb2

MOST_KERNELS = 4096
"""Most kernels that a library keeps ready. Bounded, because direct callers choose the names."""

# Longest time in seconds that an interpreter may take to learn of a publication.
_NEWS_TAKE = 1.0


Call = Callable[[list[Any]], list[Any]]
"""Calls a kernel with all of its arguments; returns its results, unchecked."""


class ChosenKernel:
    """A kernel, and how to call it."""

    __slots__ = (
        "_link",
        "call",
        "counts_row",
        "key",
        "may_be_plain",
        "may_be_planned",
        "name",
        "row",
        "signature",
    )

    def __init__(
        self,
        name: OperatorName,
        signature: Signature,
        call: Call,
        key: str,
        link: Callable[[], Call] | None = None,
    ) -> None:
        """Take ``link``, which makes an equivalent of ``call`` for arguments without gradients."""
        self._link = link
        self.name = name
        self.may_be_plain = may_be_plain(signature.schema)
        """See ``plain_calls``."""
        self.may_be_planned = may_be_planned(signature.schema)
        """See ``planned_calls``."""
        self.signature = signature
        self.call = call
        self.row: int | None = None
        """Its row in the flight record, once it has run."""
        self.key = key
        """The dispatch key for which it is registered."""
        self.counts_row = 0
        """Its row in ``call_counts``, once ``row`` is known."""

    def subject(self, library: str) -> Subject:
        """Return its subject in the flight record, as a kernel of that library."""
        return Subject(KERNEL, library, str(self.name))

    def series(self, library: str, version: int) -> Series:
        """Return the series in which its calls are counted, as a kernel of that library."""
        return Series(str(self.name), self.key, library, str(version or ""))

    @classmethod
    def of_slot(cls, dispatcher: Dispatcher, operator: str, bits: int) -> ChosenKernel:
        """Return the kernel that this process has for exactly these keys of an operator."""
        keys = DispatchKeySet.from_raw_repr(bits)
        op = dispatcher.get_schema(parse_operator_name(operator))
        found = op.lookup(keys)
        kernel, link = found.kernel, None
        if kernel.is_for_gradients:
            link = functools.partial(_linked, kernel, op, keys)
        return cls(op.name, op.signature, _boxed(kernel, op, keys), str(found.key), link)

    def without_gradients(self) -> ChosenKernel:
        """Return the kernel for calls of which no argument requires gradients.

        It is valid for the operator as it is now.
        """
        if self._link is None:
            return self
        return ChosenKernel(self.name, self.signature, self._link(), self.key)


class KernelBatch(Protocol):
    """The kernels that one library has registered, by index."""

    def get_kernel(self, place: int) -> KernelFunction:
        """Return the kernel. Raises WireError if there is none."""

    def get_key(self, place: int) -> str:
        """Return the dispatch key for which the kernel is registered."""

    def find_signature(self, name: OperatorName) -> Signature | None:
        """Return the signature of an operator that the library defines; None for others."""

    def get_function(self, place: int, signature: Signature) -> Callable[..., Any]:
        """Return the kernel as a function of the arguments in the signature."""


class ChosenKernels:
    """The chosen kernels of one library, by what calls name. Any thread may use it."""

    def __init__(self, library: KernelBatch) -> None:
        self._library = library
        self._ready: dict[tuple[str, int, int], ChosenKernel] = {}

    def find(self, dispatcher: Dispatcher, request: execution_pb2.CallRequest) -> ChosenKernel:
        """Return the library's kernel that a request names.

        If the library defined the operator, the kernel can be called even after the operator has
        changed or gone, except a boxed kernel, which takes the operator as an argument, or a layer,
        which redispatches to the operator as it is then. If another library has just defined it,
        this waits until the definition arrives: the call may have been faster. Raises WireError if
        there is no such kernel, and OperatorNotFoundError.
        """
        place, bits = request.kernel.registration, request.kernel.dispatch_keys
        if request.kernel.in_slot:
            return self._in_slot(dispatcher, request.operator, bits)
        found = self._ready.get((request.operator, place, bits))
        if found is not None:
            return found
        keys = DispatchKeySet.from_raw_repr(bits)
        name = parse_operator_name(request.operator)
        kernel = self._library.get_kernel(place)
        signature = self._library.find_signature(name)
        if signature is None or kernel.is_boxed:
            op = _find_defined(dispatcher, name)
            call = _boxed(kernel, op, keys)
            return ChosenKernel(name, signature or op.signature, call, self._library.get_key(place))
        if kernel.is_layer:
            call = _layer(kernel, signature, dispatcher, name, keys)
        else:
            call = self._unboxed(place, kernel, signature, keys)
        chosen = ChosenKernel(name, signature, call, self._library.get_key(place))
        if len(self._ready) < MOST_KERNELS:
            self._ready[request.operator, place, bits] = chosen
        return chosen

    def _in_slot(self, dispatcher: Dispatcher, operator: str, bits: int) -> ChosenKernel:
        """Return this process's kernel in the slot for these keys of an operator of the library."""
        if self._library.find_signature(parse_operator_name(operator)) is None:
            raise WireError(f"$.kernel names a library that does not define {operator}")
        return ChosenKernel.of_slot(dispatcher, operator, bits)

    def _unboxed(
        self, place: int, kernel: KernelFunction, signature: Signature, keys: DispatchKeySet
    ) -> Call:
        function = self._library.get_function(place, signature)
        if kernel.with_keyset:
            function = functools.partial(function, keys)
        return _unpacking(function, signature)


def _find_defined(dispatcher: Dispatcher, name: OperatorName) -> OperatorHandle:
    """Return the operator, which was defined where the kernel was chosen."""
    op = dispatcher.find_schema(name)
    if op is not None:
        return op
    with suppress(WaitTimeoutError):
        return dispatcher.wait_for_def(name, _NEWS_TAKE)
    return dispatcher.get_schema(name)  # raises the error for an unknown operator


def _unpacking(function: Callable[..., Any], signature: Signature) -> Call:
    """Return a function that calls ``function`` with the arguments in a list."""

    def call(stack: list[Any]) -> list[Any]:
        args, kwargs = signature.split(stack)
        return signature.box_returns(function(*args, **kwargs))

    def call_plainly(stack: list[Any]) -> list[Any]:
        return [function(*stack)]

    has_keywords = bool(signature.keyword_only_names)
    return call if has_keywords or len(signature.schema.returns) != 1 else call_plainly


def _linked(kernel: KernelFunction, op: OperatorHandle, keys: DispatchKeySet) -> Call:
    return _unpacking(kernel.linked(op, keys, is_recorded=False), op.call_signature)


def _boxed(kernel: KernelFunction, op: OperatorHandle, keys: DispatchKeySet) -> Call:
    def call(stack: list[Any]) -> list[Any]:
        kernel.call_boxed(op, keys, stack)
        return stack

    return call


def _layer(
    kernel: KernelFunction,
    signature: Signature,
    dispatcher: Dispatcher,
    name: OperatorName,
    keys: DispatchKeySet,
) -> Call:
    def call(stack: list[Any]) -> list[Any]:
        function = kernel.unboxed(_find_defined(dispatcher, name), keys)
        args, kwargs = signature.split(stack)
        return signature.box_returns(function(*args, **kwargs))

    return call
