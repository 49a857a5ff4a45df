"""The registry of operators, libraries and fallbacks, and the lookup of operators.

Mirrors ``ATen/core/dispatch/Dispatcher.h``. A ``Dispatcher`` is an ordinary object; the process
has one default, in ``library.py``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.dispatch.builtin_fallbacks import BUILTIN_FALLBACKS
from opdispatch.dispatch.compiled_call import handle_class_for
from opdispatch.dispatch.operator_dump import RegisteredKernel
from opdispatch.dispatch.operator_entry import OperatorEntry
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.dispatch.operator_state import OperatorState
from opdispatch.dispatch.registration import Registration, RegistrationHandle
from opdispatch.dispatch.registration_listener import RegistrationListener, tell
from opdispatch.dispatch.registry import Registry
from opdispatch.dispatch.similar_names import similar_operators
from opdispatch.dispatch.transaction import Transaction
from opdispatch.dispatch.wait_for_registration import wait_until
from opdispatch.errors import (
    ArgumentError,
    DataDependentOutputError,
    OperatorNotFoundError,
    RegistrationError,
    TransformError,
)
from opdispatch.keys.dispatch_key import DispatchKey, key_of
from opdispatch.schema.function_schema import FunctionSchema, OperatorName

LOG = logging.getLogger("opdispatch")

_NAMED = 3
"""Most operators of a namespace that an error message lists."""


class Dispatcher:
    """Accepts registrations, finds operators, and waits for them. Every method is thread-safe."""

    def __init__(
        self, *, allowed_keys: Iterable[DispatchKey] | None = None, compiles: bool = True
    ) -> None:
        """Create a dispatcher.

        With ``allowed_keys``, kernels and fallbacks for any other key are skipped. Keys are
        compared as registered, so an alias key must be listed itself. What opdispatch itself
        registers is always allowed. Without ``compiles``, every call takes the interpreter path:
        for dispatchers that look kernels up but call none.
        """
        self._compiles = compiles
        self._registry = Registry(lambda name: OperatorEntry(self, name))
        self._registry.on_defined = self._tell_registered
        self._registry.on_undefined = self._tell_deregistered
        self._listeners: tuple[RegistrationListener, ...] = ()  # guarded by the registry's mutex
        self.packet_of: Callable[[OperatorName], Any] | None = None
        """The packet of all overloads of an operator; set by its ``Ops``."""
        with self.transaction():
            for key, kernel in BUILTIN_FALLBACKS.items():
                self.register_fallback(key, kernel, site="opdispatch")
        if allowed_keys is not None:
            self._registry.allowed_keys = frozenset(map(normalize_key, allowed_keys))

    # -- registering ----------------------------------------------------------------------------

    def transaction(self) -> Transaction:
        """Return a ``with`` block whose registrations become visible at once, or not at all."""
        return Transaction(self._registry)

    @property
    def in_transaction(self) -> bool:
        """Whether the calling thread is in a transaction, and so sees its unpublished changes."""
        return self._registry.is_mine

    def hold_publications(self) -> AbstractContextManager[object]:
        """Return a ``with`` block during which registrations of other threads are not published."""
        return self._registry.mutex

    def register_library(self, namespace: str, *, site: str = "") -> RegistrationHandle:
        """Claim ``namespace`` for a library of kind DEF.

        Raises DuplicateDefinitionError if another library has it.
        """
        return self.register(Registration("library", site, namespace=namespace))

    def register_def(
        self,
        schema: FunctionSchema,
        *,
        site: str = "",
        tags: Sequence[str] = (),
        alias_analysis: str = "FROM_SCHEMA",
        debug: str = "",
    ) -> RegistrationHandle:
        """Define an operator. Dumps show ``debug``, or ``site`` by default.

        Raises DuplicateDefinitionError if it is already defined, SchemaMismatchError if it has a
        kernel with another signature.
        """
        return self.register(
            Registration(
                "def",
                site,
                schema=schema,
                tags=tuple(tags),
                alias_analysis=alias_analysis,
                debug_text=debug,
            )
        )

    def register_impl(
        self,
        name: OperatorName,
        key: DispatchKey | str | None,
        kernel: KernelFunction,
        *,
        site: str = "",
        debug: str = "",
    ) -> RegistrationHandle:
        """Register a kernel of the operator ``name``, defined or not, for ``key``.

        None and Undefined mean CompositeImplicitAutograd, as in PyTorch. The kernel takes
        precedence over older ones for the same key until it is undone. Raises SchemaMismatchError
        if its signature differs from that of the definition or another kernel.
        """
        key = normalize_key(key)
        return self.register(
            Registration("impl", site, name=name, key=key, kernel=kernel, debug_text=debug)
        )

    def register_fallback(
        self, key: DispatchKey, kernel: KernelFunction, *, site: str = "", debug: str = ""
    ) -> RegistrationHandle:
        """Register a kernel for ``key`` of every operator that has none of its own.

        An alias key stands for each of its runtime keys. Raises DispatchKeyError for Undefined,
        DuplicateDefinitionError if one of the keys already has a fallback.
        """
        return self.register(
            Registration("fallback", site, key=key, kernel=kernel, debug_text=debug)
        )

    def register(self, registration: Registration) -> RegistrationHandle:
        """Apply a registration; it may be applied again after it was undone.

        Raises RegistrationError, and then nothing has changed.
        """
        handle = RegistrationHandle(self, registration)
        if self._registry.allowed_keys is not None and self._registry.is_skipped(registration):
            handle.skipped = True
            LOG.info(
                "skipped, since its key is not allowed: %s, %s", registration, registration.debug
            )
        self._registry.register(handle)
        return handle

    def undo(self, *handles: RegistrationHandle) -> None:
        """Undo registrations, each once, in order and in one publication.

        ``RegistrationHandle.close`` calls it, and so finalizers may, at any moment.
        """
        self._registry.undo(handles)

    # -- finding --------------------------------------------------------------------------------

    def find_op(self, name: OperatorName | str) -> OperatorHandle | None:
        """Return the operator of that name, with or without a definition; None if there is none."""
        name = OperatorName.parse(name) if isinstance(name, str) else name
        entry = self._registry.entry_seen(name)
        if entry is None:
            return None
        if self._registry.is_mine:
            # Not compiled: compiled code uses only published state.
            return OperatorHandle(entry)
        handle: OperatorHandle | None = entry.handle
        if handle is None:
            # Two threads may both make one: they are equal, and either will do.
            handle = handle_class_for(entry.schema if self._compiles else None)(entry)
            entry.handle = handle
            if entry.state is None:  # it has died meanwhile, and could not notify this handle
                entry.forget_handle()
        return handle

    def find_schema(self, name: OperatorName | str) -> OperatorHandle | None:
        """Return the operator of that name if it is defined, else None."""
        handle = self.find_op(name)
        return handle if handle is not None and handle.has_schema else None

    def get_schema(self, name: OperatorName | str) -> OperatorHandle:
        """Return the operator of that name. Raises OperatorNotFoundError if it is not defined."""
        handle = self.find_op(name)
        if handle is None:
            raise self.not_found(str(name))
        _ = handle.schema  # raises if there are only kernels
        return handle

    def overloads(self, name: str) -> tuple[OperatorName, ...]:
        """Return the defined overloads of ``"namespace::name"``, in order of definition."""
        if self._registry.is_mine:
            entries = self._registry.entries.values()
            found = [e for e in entries if e.definitions and e.name.name == name]
            return tuple(e.name for e in sorted(found, key=lambda e: e.definitions[0].number))
        return self._registry.names.read(lambda names: names.overloads.get(name, ()))

    def resolve_overload(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> OperatorHandle:
        """Return the operator that a call by name selects.

        With an overload name, exactly that one. Without, the overload without a name if it accepts
        the arguments; else the first one, in order of definition, that does. Raises
        OperatorNotFoundError, or ArgumentError if no overload accepts them.
        """
        parsed = OperatorName.parse(name)
        if parsed.overload_name:
            return self.get_schema(parsed)
        handles = [h for n in self.overloads(name) if (h := self.find_schema(n)) is not None]
        if len(handles) == 1:
            return handles[0]
        if not handles:
            return self.get_schema(parsed)
        handles.sort(key=lambda handle: bool(handle.name.overload_name))
        refusals = []
        for handle in handles:
            try:
                handle.bind(args, kwargs)
            except (ArgumentError, DataDependentOutputError, TransformError) as error:
                # A tensor without readable elements does not count as a number.
                refusals.append(f"{handle.schema}: {error.message.partition('; its schema')[0]}")
            else:
                return handle
        raise ArgumentError(
            f"no overload of {name} takes these arguments. " + " ".join(refusals), operator=name
        )

    def finder_of(self, name: OperatorName | str) -> Callable[[], OperatorHandle]:
        """Return ``get_schema`` as a function, for a kernel made before its operator is published.

        The handle is looked up when a kernel first uses it: a handle made earlier is not compiled.
        """
        return functools.cache(functools.partial(self.get_schema, name))

    def not_found(self, name: str) -> OperatorNotFoundError:
        """Return the error for an unknown name, with similar names."""
        known = self.operators()
        if any(name in (str(each), each.name) for each in known):
            return OperatorNotFoundError(
                f"operator {name} has kernels but no definition",
                hint="did you forget to define it?",
                operator=name,
            )
        within = [
            str(each)
            for each in known
            if each.name.partition("::")[0] == name and self.find_schema(each)
        ]
        close = similar_operators(name, known, self.find_schema)
        hint = f"did you mean {' or '.join(close)}?" if close else ""
        if within:
            more = ", ..." if len(within) > _NAMED else ""
            hint = f"that is a namespace, which has {', '.join(within[:_NAMED])}{more}"
        return OperatorNotFoundError(f"there is no operator {name}", hint=hint, operator=name)

    def operators(self) -> list[OperatorName]:
        """Return all operators with a definition or a kernel, in order of registration."""
        if self._registry.is_mine:
            return [n for n, entry in self._registry.entries.items() if entry.is_registered]
        return self._registry.names.read(lambda names: list(names.entries))

    def find_dangling_impls(self) -> list[OperatorName]:
        """Return the operators that have kernels but no definition."""
        return [name for name in self.operators() if self.find_schema(name) is None]

    def get_registrations_for_dispatch_key(
        self, key: DispatchKey | str | None = None
    ) -> list[OperatorName]:
        """Return the operators with a kernel registered for exactly ``key``; all without a key."""
        if key is None:
            return self.operators()
        key = key_of(key)
        with self._registry.mutex:
            return [
                name for name, entry in self._registry.entries.items() if entry.kernels.get(key)
            ]

    def has_backend_fallback_for_dispatch_key(self, key: DispatchKey | str) -> bool:
        """Return whether a fallback serves ``key`` for operators without a kernel of their own."""
        return key_of(key) in self.fallbacks()

    def list_kernels(self, name: OperatorName) -> list[RegisteredKernel]:
        """Return the kernels of an operator in the order of their keys, newest first."""
        with self._registry.mutex:
            entry = self._registry.entries.get(name)
            kernels = entry.kernels if entry is not None else {}
            return [
                RegisteredKernel(key, handle.registration, active=place == 0)
                for key in sorted(kernels)
                for place, handle in enumerate(kernels[key])
            ]

    def find_handle(self, registration: Registration) -> RegistrationHandle | None:
        """Return the live handle that undoes a kernel's registration; None if not in force."""
        with self._registry.mutex:
            return self._registry.find_handle(registration)

    def find_dispatch_rule(self, name: OperatorName, cls: type) -> Callable[..., Any] | None:
        """Return a class's rule for calls of an operator by its modes or tensors, or None."""
        registration = self._registry.rule_seen(name, cls)
        return registration.rule if registration is not None else None

    def skipped(self) -> list[Registration]:
        """Return the registrations for keys that are not allowed, newest first."""
        with self._registry.mutex:
            return [handle.registration for handle in self._registry.skipped]

    def libraries(self) -> dict[str, Registration]:
        """Return the namespaces that libraries of kind DEF have claimed."""
        with self._registry.mutex:
            return {ns: h[0].registration for ns, h in self._registry.namespaces.items() if h}

    def fallbacks(self) -> Mapping[DispatchKey, Registration]:
        """Return the backend fallback of each runtime key that has one."""
        return self._registry.published_fallbacks.by_key

    @property
    def epoch(self) -> int:
        """The number of publications: if it differs, something may have changed."""
        return self._registry.epoch

    # -- waiting and listening ------------------------------------------------------------------

    def wait_for_def(
        self, name: OperatorName | str, timeout: float = 2.0, *, awaited_from: str = ""
    ) -> OperatorHandle:
        """Wait until the operator is defined, for at most ``timeout`` seconds.

        Raises WaitTimeoutError, which says that ``awaited_from`` was expected to define it. The
        default timeout is PyTorch's (``Dispatcher::waitForDef``).
        """
        self._wait(
            lambda: self.find_schema(name), timeout, f"the definition of {name}", awaited_from
        )
        return self.get_schema(name)

    def wait_for_impl(
        self,
        name: OperatorName | str,
        key: DispatchKey | str | None = None,
        timeout: float = 2.0,
        *,
        awaited_from: str = "",
    ) -> None:
        """Wait until the operator has a kernel for ``key``, for at most ``timeout`` seconds.

        Raises WaitTimeoutError, which says that ``awaited_from`` was expected to register it.
        """
        key = normalize_key(key)

        def has_kernel() -> bool:
            handle = self.find_op(name)
            return handle is not None and handle.has_kernel_for_dispatch_key(key)

        self._wait(has_kernel, timeout, f"a {key} kernel of {name}", awaited_from)

    def _wait(
        self, reached: Callable[[], object], timeout: float, what: str, awaited_from: str
    ) -> None:
        if self._registry.is_mine:
            raise RegistrationError(
                f"cannot wait for {what} within a transaction: it holds up others"
            )
        with self._registry.waiting():
            wait_until(self._registry.changed, reached, timeout, what, awaited_from)

    def add_registration_listener(self, listener: RegistrationListener) -> None:
        """Call ``listener`` for every operator that is defined now, and for all later changes."""
        with self._registry.mutex:
            for name, entry in self._registry.entries.items():
                if entry.definitions:
                    listener.on_operator_registered(name)
            self._listeners = (*self._listeners, listener)

    def remove_registration_listener(self, listener: RegistrationListener) -> None:
        """Stop calling ``listener``."""
        with self._registry.mutex:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

    def _tell_registered(self, name: OperatorName) -> None:
        for listener in self._listeners:
            tell(listener.on_operator_registered, name)

    def _tell_deregistered(self, name: OperatorName) -> None:
        for listener in self._listeners:
            tell(listener.on_operator_deregistered, name)

    # -- looking inside -------------------------------------------------------------------------

    def check_invariants(self) -> list[str]:
        """Recompute every state and return descriptions of the violated invariants."""
        return self._registry.find_violations()

    def state_of(self, entry: OperatorEntry) -> OperatorState | None:
        """Return the state of ``entry`` for the calling thread; None if it is dead."""
        return self._registry.state_seen(entry)


def normalize_key(key: DispatchKey | str | None) -> DispatchKey:
    """Return ``key``, or CompositeImplicitAutograd for None and Undefined."""
    found = key if type(key) is DispatchKey else key_of(key or "")
    return found or DispatchKey.CompositeImplicitAutograd
