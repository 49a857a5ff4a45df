"""One registration, and the handle that undoes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.schema.function_schema import FunctionSchema, OperatorName


@dataclass(slots=True, eq=False)
class Registration:
    """One registration by a library. Never changed, and compared by identity.

    It is not frozen, since that would make each construction five times as long.

    ``kind`` says which of the fields count: "library" takes ``namespace``; "def" gives an
    operator its ``schema``, ``alias_analysis`` and ``tags``; "impl" gives the operator ``name`` a
    ``kernel`` for ``key``; "fallback" gives every operator a ``kernel`` for ``key``;
    "dispatch_rule" is a ``rule`` for calls of the operator ``name`` that a mode or a tensor of
    ``rule_class`` is asked for. ``site`` is the place, "FILE:LINE", and ``debug_text`` what dumps
    show instead of it.
    """

    kind: Literal["library", "def", "impl", "fallback", "dispatch_rule"]
    site: str = ""
    namespace: str = ""
    schema: FunctionSchema | None = None
    name: OperatorName | None = None
    key: DispatchKey | None = None
    kernel: KernelFunction | None = None
    tags: tuple[str, ...] = ()
    alias_analysis: str = "FROM_SCHEMA"
    debug_text: str = ""
    rule_class: type[Any] | None = None
    rule: Callable[..., Any] | None = None

    @property
    def debug(self) -> str:
        """The text that PyTorch's dumps show for it."""
        if self.debug_text:
            return self.debug_text
        return f"registered at {self.site}" if self.site else "registered from Python"

    def __str__(self) -> str:
        match self.kind:
            case "library":
                return f"library {self.namespace} (DEF)"
            case "def":
                return f"def {self.schema}"
            case "impl":
                return f"impl {self.name} for {self.key}"
            case "fallback":
                return f"fallback for {self.key}"
            case "dispatch_rule":
                of = self.rule_class.__qualname__ if self.rule_class is not None else None
                return f"dispatch rule of {of} for {self.name}"


if TYPE_CHECKING:  # nothing at run time asks for it

    class Registrar(Protocol):
        """The part of a dispatcher that a handle needs."""

        def undo(self, handle: RegistrationHandle) -> None:
            """Undo a registration. Idempotent."""


class RegistrationHandle:
    """Owns one registration. ``close()``, or leaving its ``with`` block, undoes that one.

    Closing is idempotent, may happen in any order and from any thread, and is safe when the
    dispatcher is gone. A handle that is merely forgotten undoes nothing: what a library registers
    stays until set otherwise.

    ``skipped`` says that the dispatcher does not allow the registration's key: it is kept in
    ``Dispatcher.skipped()`` until it is undone, and serves no call.
    """

    __slots__ = ("_dispatcher", "live", "number", "registration", "skipped")

    def __init__(self, dispatcher: Registrar, registration: Registration) -> None:
        self._dispatcher = weakref.ref(dispatcher)
        self.registration = registration
        self.live = False  # guarded by the dispatcher's mutex
        self.number = 0
        """Of two registrations, the later one has the higher number."""
        self.skipped = False

    def close(self) -> None:
        """Undo the registration; what it had covered is in force again."""
        dispatcher = self._dispatcher()
        if dispatcher is not None:
            dispatcher.undo(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "undone" if not self.live else "skipped" if self.skipped else "live"
        return f"<RegistrationHandle {self.registration} [{state}]>"
