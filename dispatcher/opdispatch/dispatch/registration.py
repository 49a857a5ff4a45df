"""One registration, and the handle that undoes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import DispatchKeyError, RegistrationError
from opdispatch.keys.dispatch_key import DispatchKey, is_alias_key
from opdispatch.keys.dispatch_key_set import get_runtime_dispatch_key_set
from opdispatch.schema.function_schema import FunctionSchema, OperatorName

RuleKey = tuple[OperatorName, type[Any]]
"""The operator, and the class of the mode or the tensor."""


@dataclass(slots=True, eq=False)
class Registration:
    """One registration by a library. Immutable by convention, and compared by identity.

    It is not frozen, which would make construction five times as slow. ``kind`` says which fields
    apply: "library" claims ``namespace``; "def" gives an operator its ``schema``,
    ``alias_analysis`` and ``tags``; "impl" gives the operator ``name`` a ``kernel`` for ``key``;
    "fallback" gives every operator a ``kernel`` for ``key``; "dispatch_rule" is a ``rule`` by which
    modes or tensors of ``rule_class`` handle calls of the operator ``name``. ``site`` is the place,
    "FILE:LINE", and ``debug_text`` is shown by dumps instead of it.
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


if TYPE_CHECKING:  # only type checkers need it

    class Registrar(Protocol):
        """The part of a dispatcher that a handle needs."""

        def undo(self, handle: RegistrationHandle) -> None:
            """Undo a registration. Idempotent."""


class RegistrationHandle:
    """Owns one registration. ``close()``, or the end of its ``with`` block, undoes it.

    Closing is idempotent, may happen in any order and from any thread, and is safe when the
    dispatcher is gone. Dropping a handle undoes nothing: a library's registrations stay until they
    are undone explicitly.

    ``skipped`` says that the dispatcher does not allow the registration's key: it is listed in
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
        """Undo the registration; an older one that it covered is in force again."""
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


def rule_key(registration: Registration) -> RuleKey:
    """Return the operator and the class of a rule. Raises RegistrationError if one is missing."""
    name, cls = registration.name, registration.rule_class
    if name is None or cls is None or registration.rule is None:
        raise RegistrationError("a rule needs an operator, a class and a function")
    return name, cls


def runtime_keys_of_fallback(key: DispatchKey | None) -> list[DispatchKey]:
    """Return the runtime keys that a fallback for ``key`` serves.

    Raises DispatchKeyError if none.
    """
    if not key:
        raise DispatchKeyError("a fallback needs the dispatch key that it is for")
    return list(get_runtime_dispatch_key_set(key)) if is_alias_key(key) else [key]
