"""An operator as callers hold it: ``handle(x, y)`` dispatches.

Mirrors ``OperatorHandle`` of ``ATen/core/dispatch/Dispatcher.h`` and ``OpOverload`` of
``torch/_ops.py``. The methods here are the specification of a call, in readable steps;
``compiled_call.py`` generates a fast path with the same results for each schema.

Note [A handle follows its name]
    PyTorch 2.13 crashes when an unregistered operator is called. Here the handle looks its name up
    again: it calls the operator that now has the name, or raises OperatorNotFoundError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opdispatch.autograd.inference_tensor import ADINPLACE_OR_VIEW_BIT, marking_results
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.boxing.signature import Signature
from opdispatch.dispatch.dispatch_key_extractor import is_fallthrough
from opdispatch.dispatch.dispatch_table import AMBIGUOUS
from opdispatch.dispatch.missing_kernel import missing_kernel_error, no_kernel_error
from opdispatch.dispatch.observed_call import ObservedCall
from opdispatch.dispatch.op_overload_names import OpOverloadNames
from opdispatch.dispatch.operator_dump import (
    RegisteredKernel,
    TableRow,
    format_registrations,
    format_table,
    table_rows,
)
from opdispatch.dispatch.operator_state import NEEDS_GRADIENT, OperatorState, Resolution
from opdispatch.dispatch.registration import Registration
from opdispatch.errors import NoKernelError, OperatorNotFoundError
from opdispatch.keys.dispatch_key import DispatchKey, is_alias_key, key_of
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE, LocalState
from opdispatch.schema.function_schema import FunctionSchema, OperatorName

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_entry import OperatorEntry


class OperatorHandle(OpOverloadNames):
    """One overload of one operator; made by the dispatcher, callable from any thread."""

    __slots__ = ("__weakref__", "_entry")

    def __init__(self, entry: OperatorEntry) -> None:
        self._entry = entry

    # -- properties ---------------------------------------------------------------------------

    @property
    def name(self) -> OperatorName:
        """The operator's name."""
        return self._entry.name

    @property
    def dispatcher(self) -> Any:
        """The ``Dispatcher`` to which it belongs; the class is defined above this module."""
        return self._entry.dispatcher

    @property
    def published_state(self) -> object:
        """The definition and kernels, as of the last publication that changed any of them.

        It is a new object after each change: if it is the same, nothing has changed. Raises
        OperatorNotFoundError if the operator is gone.
        """
        return self._state()

    @property
    def has_schema(self) -> bool:
        """Whether the operator is defined; one that only has kernels cannot be called."""
        return self._state().signature is not None

    @property
    def signature(self) -> Signature:
        """The ``Signature``, which binds arguments. Raises OperatorNotFoundError if undefined."""
        return self._signature_in(self._state())

    @property
    def call_signature(self) -> Signature:
        """The signature of a call in progress: it stays if the operator is unregistered."""
        entry = self._entry
        # Within a transaction, a call may use a definition that is not published.
        if entry.signature is None or entry.dispatcher.in_transaction:
            return self.signature
        return entry.signature

    @property
    def may_write(self) -> bool:
        """Whether calls may write to arguments; fast, for code that checks it in each call."""
        signature = self._entry.signature
        return signature is None or bool(signature.written)

    @property
    def schema(self) -> FunctionSchema:
        """Its schema. Raises OperatorNotFoundError if it is not defined."""
        return self.signature.schema

    @property
    def tags(self) -> list[str]:
        """The tags of its definition: each a ``Tag``, which is a string with its own name."""
        definition = self._state().definition
        return list(definition.tags) if definition is not None else []

    @property
    def defined_at(self) -> str:
        """The place of its definition, "FILE:LINE"; "" if it is not defined."""
        definition = self._state().definition
        return definition.site if definition is not None else ""

    @property
    def definition(self) -> Registration | None:
        """The registration that defined it."""
        return self._state().definition

    def kernels(self) -> list[RegisteredKernel]:
        """Return its kernels in the order of their keys, the newest of each key first."""
        return self._entry.dispatcher.list_kernels(self.name)

    def has_kernel_for_dispatch_key(self, key: DispatchKey | str) -> bool:
        """Return whether a kernel is registered for exactly ``key``, a runtime or an alias key."""
        return key_of(key) in self._state().kernels

    @property
    def asks_vmap_mode(self) -> bool:
        """Whether calls within ``vmap`` differ even without a batch: see ``OperatorState``."""
        state = self._entry.state  # read once, since this is checked in each call
        return (self._state() if state is None else state).asks_vmap_mode

    def kernel_for_dispatch_key(self, key: DispatchKey) -> KernelFunction | None:
        """Return the newest kernel that is registered for exactly ``key``, or None."""
        registration = self._state().kernels.get(key)
        return None if registration is None else registration.kernel

    # -- the steps of a call ------------------------------------------------------------------

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments as a stack, in schema order, with defaults. Raises ArgumentError."""
        return self.signature.bind(args, kwargs)

    def dispatch_keys(self, stack: Sequence[Any]) -> DispatchKeySet:
        """Return the keys with which a call with these arguments is dispatched, in this task."""
        return DispatchKeySet(self._bits(self._state(), stack))

    def lookup(self, keys: DispatchKeySet) -> Resolution:
        """Return the kernel for ``keys``, as ``dispatch_keys`` returns them.

        Raises NoKernelError if there is none, AmbiguousKernelError if there are two.
        """
        return self._lookup(self._state(), keys.bits)

    def check_returns(self, stack: Sequence[Any]) -> list[Any]:
        """Return the returns on ``stack``, converted to their types. Raises ReturnError."""
        return self.signature.check_returns(stack)

    def no_kernel_error(
        self, key: str, what: str, state: OperatorState | None = None
    ) -> NoKernelError:
        """Return the error for a call that no kernel serves at ``key``.

        It says that ``what`` failed, and which keys have kernels. ``state`` is the one in which the
        call was looked up; by default the current one.
        """
        return no_kernel_error(state or self._state(), str(self.name), key, what)

    # -- calls --------------------------------------------------------------------------------

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel for the keys of the arguments.

        Raises ArgumentError, NoKernelError, AmbiguousKernelError, ReturnError,
        OperatorNotFoundError, and the kernel's own errors.
        """
        return self.interpret_call(args, kwargs)

    def call_converted(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the operator with a complete list of converted arguments.

        Positional ones are passed by position, the others by name. Lists must be new, because the
        kernel gets them.
        """
        return self(*args, **kwargs)

    def redispatch(self, keys: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel for exactly ``keys``, whatever keys the arguments have."""
        return self.interpret_redispatch(keys, args, kwargs)

    def redispatch_converted(self, keys: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Call ``redispatch`` from a kernel of this operator that passes on its own arguments.

        All arguments must be given and converted: compiled code does not check them again.
        """
        return self.interpret_redispatch(keys, args, kwargs)

    def redispatch_function(self, keys: DispatchKeySet) -> Callable[..., Any]:
        """Return ``redispatch_converted`` for these keys, as a function of the arguments alone.

        The kernel is looked up now, unless calls are traced, so the function may only be kept in an
        ``OperatorState``. Its attribute ``kernel`` is the bare kernel, for callers that own their
        arguments and do not use the result: it gets those very lists, and its results are not
        checked.
        """
        handle, state = self._follow()
        if LOCAL_STATE.get().trace is None:
            function = state.redispatches.get(keys.bits)
            if function is None and (kernel := state.find_kernel(keys.bits)) is not None:
                function = kernel.unboxed(handle, keys)
                state.remember(state.redispatches, keys.bits, function)
            if function is not None:
                return handle._link(keys, function)
        return handle._unlinked(keys)  # it raises, or is traced

    def _link(self, keys: DispatchKeySet, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``redispatch_converted`` bound to ``function``; compiled code calls it."""
        return self._unlinked(keys)

    def _unlinked(self, keys: DispatchKeySet) -> Callable[..., Any]:
        function, kernel = (partial(self.redispatch_converted, keys) for _ in range(2))
        function.__dict__["kernel"] = kernel
        return function

    def interpret_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the operator in readable steps; compiled code does so in every unusual case."""
        handle, state = self._follow()
        local = LOCAL_STATE.get()
        signature = handle._signature_in(state)
        stack = signature.bind(args, kwargs)
        argument_bits = signature.key_bits(stack)
        bits = state.mask(local.apply(argument_bits))
        kernel = handle._lookup(state, bits)
        needs_gradient = signature.needs_gradient(stack)
        # an observer or trace must see each call and redispatch
        if (memo := state.calls_in(local)) is None:
            function = kernel.kernel.unboxed(handle, DispatchKeySet(bits))
        else:
            is_recorded = needs_gradient or signature.hides_tensors
            function = kernel.kernel.linked(handle, DispatchKeySet(bits), is_recorded=is_recorded)
        if not local.included & ADINPLACE_OR_VIEW_BIT:  # in inference mode
            function = marking_results(signature.schema, function)
        if memo is not None:
            memo.remember(argument_bits | NEEDS_GRADIENT * needs_gradient, function)
        return handle._run(function, signature, stack, kernel, "call", local)

    def interpret_redispatch(
        self, keys: DispatchKeySet, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Redispatch a call in readable steps."""
        handle, state = self._follow()
        local = LOCAL_STATE.get()
        signature = handle._signature_in(state)
        stack = signature.bind(args, kwargs)
        kernel = handle._lookup(state, keys.bits)
        function = kernel.kernel.unboxed(handle, keys)
        if local.trace is None:
            state.remember(state.redispatches, keys.bits, function)
        return handle._run(function, signature, stack, kernel, "redispatch", local)

    def call_boxed(self, stack: list[Any]) -> None:
        """Replace the arguments on ``stack``, as ``bind`` returns them, by the returns."""
        handle, state = self._follow()
        bits = handle._bits(state, stack)
        handle._call_kernel_boxed(state, handle._lookup(state, bits), bits, stack, "callBoxed")

    def redispatch_boxed(self, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Call the kernel on a stack with exactly ``keys``, whatever keys the arguments have."""
        self.interpret_redispatch_boxed(keys, stack)

    def interpret_redispatch_boxed(self, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Redispatch a stack in readable steps."""
        handle, state = self._follow()
        handle._signature_in(state)  # raises first if the operator has no definition
        kernel = handle._lookup(state, keys.bits)
        if LOCAL_STATE.get().trace is None:
            function = kernel.kernel.boxed(handle, keys)
            state.remember(state.boxed_redispatches, keys.bits, function)
        handle._call_kernel_boxed(state, kernel, keys.bits, stack, "redispatchBoxed")

    def call_boxed_for_dispatch_key(self, key: DispatchKey | str, stack: list[Any]) -> None:
        """Call the kernel in the slot of ``key`` as ``call_boxed`` does, with the arguments' keys.

        For an alias key, it is the kernel registered for it.
        """
        key = key_of(key)
        handle, state = self._follow()
        bits = handle._bits(state, stack)
        kernel = handle._checked(state, key, bits, arrived=str(key))
        handle._call_kernel_boxed(state, kernel, bits, stack, "callBoxed")

    def set_report_error_callback(self, callback: Callable[[str], None] | None) -> None:
        """Call ``callback(key)`` whenever a call finds no kernel, before NoKernelError is raised.

        If the callback raises, that error replaces NoKernelError. It is not called for Meta tensors
        or an ambiguous kernel, as in PyTorch. Mirrors ``_dispatch_set_report_error_callback``.
        """
        self._follow()[0]._entry.report_error = callback

    # -- looking inside -----------------------------------------------------------------------

    def table_rows(self) -> list[TableRow]:
        """Return the computed dispatch table, Undefined first, without rows for missing kernels."""
        return table_rows(self._state())

    def dump_table(self) -> str:
        """Return the computed dispatch table in the lines of ``torch._C._dispatch_dump_table``."""
        return format_table(self.table_rows())

    def dump_state(self) -> str:
        """Return the registrations as text, in the format of ``torch._C._dispatch_dump``."""
        return format_registrations(str(self.name), self._state().definition, self.kernels())

    def __repr__(self) -> str:
        return f"<OperatorHandle {self.name}>"

    def forget_schema(self) -> None:
        """Bind arguments by the name's current schema at each call from now on.

        See Note [Compiled for one schema] in ``compiled_call.py``.
        """
        self.__class__ = OperatorHandle

    # -- internals ----------------------------------------------------------------------------

    def _follow(self) -> tuple[OperatorHandle, OperatorState]:
        """Return the handle and state to use. See Note [A handle follows its name]."""
        entry = self._entry
        state = entry.dispatcher.state_of(entry)
        if state is not None:
            return self, state
        handle: OperatorHandle | None = entry.dispatcher.find_op(entry.name)
        if handle is None:
            raise OperatorNotFoundError(
                f"operator {entry.name} is gone: the library that defined it was unloaded",
                operator=str(entry.name),
            )
        return handle._follow()

    def _state(self) -> OperatorState:
        return self._follow()[1]

    def _signature_in(self, state: OperatorState) -> Signature:
        if state.signature is None:
            raise OperatorNotFoundError(
                f"operator {self.name} has kernels but no definition",
                hint="did you forget to define it?",
                operator=str(self.name),
            )
        return state.signature

    def _bits(self, state: OperatorState, stack: Sequence[Any]) -> int:
        """Return the key bits of a call with these arguments."""
        argument_bits = self._signature_in(state).key_bits(stack)
        return state.mask(LOCAL_STATE.get().apply(argument_bits))

    def _lookup(self, state: OperatorState, bits: int) -> Resolution:
        return self._checked(state, state.resolve(bits)[0], bits)

    def _checked(
        self, state: OperatorState, key: DispatchKey, bits: int, arrived: str = ""
    ) -> Resolution:
        registration, reason = state.slot(key) if not is_alias_key(key) else state.registered(key)
        if registration is None or registration.kernel is None or is_fallthrough(registration):
            # PyTorch's name for the highest key differs from its slot's if no backend is set:
            # "QuantizedUndefined" is served by the slot of QuantizedCPU.
            arrived = arrived or str(DispatchKeySet(bits).highest_priority_key)
            report = self._entry.report_error if registration is None else None
            if report is not None and reason != AMBIGUOUS and arrived != "Meta":
                report(arrived)
            raise missing_kernel_error(state, str(self.name), arrived, reason, registration)
        return Resolution(key, registration, registration.kernel, reason)

    def _run(
        self,
        function: Any,
        signature: Signature,
        stack: Sequence[Any],
        kernel: Resolution,
        kind: str,
        local: LocalState,
    ) -> Any:
        args, kwargs = signature.split(stack)
        if local.trace is None and local.observer is None:
            return signature.check_result(function(*args, **kwargs))
        with ObservedCall(self, kernel, kind, local, stack) as observed:
            observed.result = signature.check_result(function(*args, **kwargs))
        return observed.result

    def _call_kernel_boxed(
        self, state: OperatorState, kernel: Resolution, bits: int, stack: list[Any], kind: str
    ) -> None:
        local = LOCAL_STATE.get()
        signature = self._signature_in(state)
        if local.trace is None and local.observer is None:
            kernel.kernel.call_boxed(self, DispatchKeySet(bits), stack)
            stack[:] = signature.check_returns(stack)
            return
        with ObservedCall(self, kernel, kind, local, stack) as observed:
            kernel.kernel.call_boxed(self, DispatchKeySet(bits), stack)
            stack[:] = signature.check_returns(stack)
            observed.result = signature.unbox_returns(stack)
