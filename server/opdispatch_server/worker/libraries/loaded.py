"""One version of a library in an interpreter: loaded, with code, or the mirror of another's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from opdispatch import Dispatcher, KernelFunction, OperatorName, Registration
from opdispatch.arrays import BackendRegistration
from opdispatch.boxing.signature import Signature
from opdispatch.dispatch.registration import RegistrationHandle, runtime_keys_of_fallback
from opdispatch.library.unload_hooks import UnloadHooks, run_unload_hooks
from opdispatch_server.library_code.module_import import LibraryImport
from opdispatch_server.lifted_kernels import operator_of
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.metrics.call_counts import process_call_counts
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernels
from opdispatch_server.worker.libraries.turns import LibraryTurns
from opdispatch_server.worker.libraries.unloaded_code import UnloadedCode, functions_of
from opdispatch_wire.errors import RefusedError, WireError

LOG = logging.getLogger("opdispatch.interpreter")

UNLOAD_SECONDS = 5.0
"""Time limit in seconds for all ``on_unload`` functions of a library together."""


class LoadedLibrary:
    """The registrations of one version, in order, and whether they are in force.

    ``imported`` is None for a mirror. Only one thread changes registrations; any thread may call
    ``begin_call``, ``end_call`` and ``release``: ``_lock`` protects ``_running``, ``_released`` and
    ``_is_gone``. Threads may race to adapt a kernel; either result will do.
    """

    def __init__(
        self,
        load_id: int,
        name: str,
        registrations: Sequence[Registration],
        imported: LibraryImport | None = None,
        max_concurrency: int = 1,
        backends: Sequence[BackendRegistration] = (),
        version: int = 0,
        hooks: Sequence[UnloadHooks] = (),
        unloaded: UnloadedCode | None = None,
    ) -> None:
        """Hold a loaded version; ``unloaded`` frees the memory of its code once it is gone."""
        self.load_id = load_id
        self.name = name
        self.version = version
        self.registrations = registrations
        self.imported = imported
        self.max_concurrency = max_concurrency
        self.backends = backends
        """The array backends that the module has registered."""
        self._hooks = hooks
        self._unloaded = unloaded or UnloadedCode()
        self.handles: Sequence[RegistrationHandle] = ()
        self._signatures = {
            registration.schema.name: Signature(registration.schema)
            for registration in registrations
            if registration.schema is not None
        }
        # Unboxed kernels by index, adapted to the signature they were last called with.
        self._adapted: dict[int, tuple[Signature, Callable[..., Any]]] = {}
        self.turns: LibraryTurns[Any] = LibraryTurns()
        self.kernels = ChosenKernels(self)
        self._lock = threading.Lock()
        self._running = 0
        self._released = False
        self._is_gone = False  # once set, no call begins

    def publish(self, dispatcher: Dispatcher, others: Iterable[LoadedLibrary]) -> None:
        """Put the registrations in force, in one publication.

        Of ``others``, versions of the same library give up everything that this one registers, too;
        what only they have stays until they are retired, since their running kernels may still call
        it. Any other library gives up what must be unique: the daemon has checked that it is being
        unloaded. Raises RegistrationError, and then nothing has changed.
        """
        operators = {operator_of(registration) for registration in self.registrations}
        unique = {part for each in self.registrations for part in _unique_parts_of(each)}
        with dispatcher.transaction():
            for handle in self.handles:
                handle.close()
            for other in others:
                for handle in other.handles:
                    same = other.name == self.name
                    registration = handle.registration
                    if (same and operator_of(registration) in operators) or (
                        not unique.isdisjoint(_unique_parts_of(registration))
                    ):
                        handle.close()
            self.handles = [dispatcher.register(r) for r in self.registrations]
        for backend in self.backends:
            backend.open()

    @property
    def in_force(self) -> bool:
        """Whether any of the registrations is in force."""
        return any(handle.live for handle in self.handles)

    @property
    def wholly_in_force(self) -> bool:
        """Whether all of the registrations are in force."""
        is_published = bool(self.handles) or not self.registrations
        return is_published and all(handle.live for handle in self.handles)

    def retire(self, dispatcher: Dispatcher) -> None:
        """Undo the registrations, in one publication. Idempotent."""
        with dispatcher.transaction():
            for handle in reversed(self.handles):
                handle.close()
        self.handles = ()
        for backend in self.backends:  # clients' values may still be arrays of it
            backend.retire()

    def close_backends(self) -> None:
        """Undo the registrations of array backends. Idempotent."""
        for backend in self.backends:
            backend.close()

    def release(self) -> None:
        """Release the code as soon as none of its kernels is running for a call.

        If none is, it has been released on return.
        """
        with self._lock:
            self._released = True
            now = self._is_gone = not self._running
        if now:
            self.unload(UNLOAD_SECONDS)

    def begin_call(self) -> None:
        """Count a call that runs one of the kernels. Raises RefusedError if the code is gone."""
        with self._lock:
            if self._is_gone:
                raise gone_error(self.load_id)
            self._running += 1

    def end_call(self) -> None:
        """Stop counting a call."""
        with self._lock:
            self._running -= 1
            if self._running or not self._released:
                return
            self._is_gone = True
        # Not in the call's thread, whose caller waits for the reply.
        threading.Thread(
            target=self.unload, args=(UNLOAD_SECONDS,), name="unloading", daemon=True
        ).start()

    def get_kernel(self, place: int) -> KernelFunction:
        """Return the kernel of the registration at ``place``, as a call names it.

        Raises WireError if it has none, because direct callers are not trusted; RefusedError if the
        code is gone.
        """
        if self._is_gone:
            raise gone_error(self.load_id)
        kernel = self.registrations[place].kernel if place < len(self.registrations) else None
        if kernel is None or kernel.is_fallthrough:
            raise WireError(
                f"$.kernel.registration is {place}, which is not a kernel of library {self.name!r}"
            )
        return kernel

    def get_key(self, place: int) -> str:
        """Return the dispatch key of the kernel at ``place``, which ``get_kernel`` has checked."""
        return str(self.registrations[place].key or "")

    def has_operator(self, operator: OperatorName) -> bool:
        """Return whether this version defines or implements the operator."""
        return any(operator_of(each) == operator for each in self.registrations)

    def find_signature(self, operator: OperatorName) -> Signature | None:
        """Return the signature of an operator that this version defines.

        Calls routed to this version are bound by it, whatever has become of the operator since.
        """
        return self._signatures.get(operator)

    def get_function(self, place: int, signature: Signature) -> Callable[..., Any]:
        """Return the unboxed kernel at ``place``, called with all arguments of ``signature``."""
        adapted = self._adapted.get(place)
        if adapted is None or adapted[0] is not signature:
            adapted = self._adapted[place] = (signature, self.get_kernel(place).adapt(signature))
        return adapted[1]

    def unload(self, seconds: float) -> None:
        """Call the library's ``on_unload`` functions, and free its memory.

        They may take at most ``seconds``. Idempotent.
        """
        imported, self.imported = self.imported, None
        if imported is None:
            return
        self._is_gone = True
        if not run_unload_hooks(self._hooks, seconds):
            LOG.error(
                "on_unload of %s v%s has not ended after %g s; it goes on in the background",
                self.name,
                self.version,
                seconds,
                extra=fields(Event.ON_UNLOAD_FAILED, library=self.name, version=self.version),
            )
        imported.forget()
        process_call_counts().retire(self.name, str(self.version or ""))
        functions = functions_of(each.kernel for each in self.registrations if each.kernel)
        # Code that still refers to this object keeps nothing of the library alive.
        self.registrations = self.handles = self._hooks = self.backends = ()
        self._adapted = {}
        self._signatures = {}
        self.kernels = ChosenKernels(self)
        # Its functions, and what they refer to, are in cycles: Python would collect them some time
        # later, and would not return the memory to the system.
        self._unloaded.note(functions)


def gone_error(load_id: int) -> RefusedError:
    """Return the error for a call whose library has been unloaded meanwhile."""
    return RefusedError(
        f"the interpreter does not hold the library of load {load_id}",
        hint="it has just been unloaded; try again",
    )


def _unique_parts_of(registration: Registration) -> Collection[Hashable]:
    """Return the parts that must be unique; none for kernels, which may be stacked."""
    match registration.kind:
        case "library":
            return (registration.namespace,)
        case "def":
            return (operator_of(registration),)
        case "fallback":
            return runtime_keys_of_fallback(registration.key)  # several, for an alias key
        case "dispatch_rule":
            return ((registration.name, registration.rule_class),)
        case "impl":
            return ()
