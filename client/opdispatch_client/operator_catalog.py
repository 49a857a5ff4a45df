"""Names and descriptions of operators, for completion, ``help`` and ``inspect.signature``.

Attributes of ``session.ops`` send no request until the names have been listed. After that, an
unknown name is looked up again, since it may have been loaded meanwhile, and raises
OperatorNotFoundError if it does not exist: a misspelt name fails at the attribute, not at the call.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from opdispatch.errors import OpdispatchError, OperatorNotFoundError
from opdispatch_client import rpcs
from opdispatch_client.listings import OperatorDescription, OperatorSummary
from opdispatch_client.rpcs import Rpc
from opdispatch_wire.printable import printable_lines

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema

T = TypeVar("T")

ANSWER_SECONDS = 2.0
"""Seconds that an attribute access, or ``help``, waits for the daemon."""
_MOST_OVERLOADS = 20


class Ask(Protocol):
    """Sends a request to the daemon and waits for the reply."""

    def __call__(self, rpc: Rpc[T], *, timeout: float) -> T:
        """Raise an OpdispatchError, also if there is no reply within `timeout` seconds."""


class OperatorCatalog:
    """The operators of one daemon, as far as a session knows them. Any thread may use it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        # The names of namespaces, operators and overloads; None before the first listing. Replaced
        # as a whole, so that readers need no lock.
        self._known: frozenset[str] | None = None
        self._names: list[str] = []

    def note(self, operators: Iterable[OperatorSummary]) -> None:
        """Remember the names of a listing of all operators."""
        self._names = [each.name for each in operators]
        self._known = _with_parts(self._names)

    def note_description(self, described: OperatorDescription) -> None:
        """Do nothing, since ``describe`` sends a request each time. Overridden for asyncio."""

    def names(self) -> list[str]:
        """Return the names of all operators.

        Raises an OpdispatchError if the daemon does not answer.
        """
        found = self._ask(rpcs.list_operators(""), timeout=ANSWER_SECONDS)
        self.note(found)
        return self._names

    def check(self, name: str) -> None:
        """Raise OperatorNotFoundError, with similar names, for a name known to be missing.

        `name` is a namespace, an operator or an overload. No name is known to be missing before the
        first listing, or if the daemon does not answer.
        """
        if self._known is None or name in self._known:
            return
        try:
            names = self.names()
        except OpdispatchError:  # a call will report it
            return
        if name not in _with_parts(names):
            raise _not_found(name, names)

    def describe(self, name: str) -> list[OperatorDescription]:
        """Return every overload of an operator; none if it does not exist, or without an answer."""
        try:
            found = self._ask(rpcs.list_operators(name), timeout=ANSWER_SECONDS)
            overloads = overloads_of(name, [each.name for each in found])
            return [self._ask(rpcs.describe(each), timeout=ANSWER_SECONDS) for each in overloads]
        except OpdispatchError:
            return []

    def close(self) -> None:
        """Do nothing: every request ends before its method returns."""


def documentation_of(described: list[OperatorDescription]) -> str:
    """Return schemas, documentation and places of definition as text; "" for no overloads."""
    parts = []
    for each in described:
        place = [f"library {each.libraries[0]}"] if each.libraries else []
        place += [f"defined at {each.defined_at}"] if each.defined_at else []
        place += [f"kernels for {', '.join(each.keys)}"] if each.keys else []
        texts = (each.schema or each.name, inspect.cleandoc(each.documentation), "; ".join(place))
        parts.append("\n\n".join(text for text in texts if text))
    return printable_lines("\n\n".join(parts))  # `help` writes to terminals


def signature_of(described: list[OperatorDescription]) -> inspect.Signature | None:
    """Return the signature of an operator's only overload; None if there is not exactly one."""
    schema = _schema_of(described)
    if schema is None:
        return None
    from opdispatch.library.python_signature import python_signature  # only these need it

    return python_signature(schema)


def annotations_of(described: list[OperatorDescription]) -> dict[str, Any] | None:
    """Return the types of an only overload's arguments by name, and the ``return`` type."""
    signature = signature_of(described)
    if signature is None:
        return None
    found = {name: each.annotation for name, each in signature.parameters.items()}
    return {**found, "return": signature.return_annotation}


def _schema_of(described: list[OperatorDescription]) -> FunctionSchema | None:
    if len(described) != 1 or not described[0].schema:
        return None
    from opdispatch.schema.parser import parse_schema  # only these need it

    return parse_schema(described[0].schema)


def overloads_of(operator: str, names: Iterable[str]) -> list[str]:
    """Return the overloads of an operator among ``names``, at most ``_MOST_OVERLOADS``."""
    found = [each for each in names if each == operator or each.startswith(f"{operator}.")]
    return found[:_MOST_OVERLOADS]


def _with_parts(names: Iterable[str]) -> frozenset[str]:
    """Return the names of the overloads, and of their operators and namespaces."""
    known: set[str] = set()
    for each in names:
        namespace, _, rest = each.partition("::")
        known |= {each, namespace, f"{namespace}::{rest.partition('.')[0]}"}
    return frozenset(known)


def _not_found(name: str, names: list[str]) -> OperatorNotFoundError:
    import difflib  # only errors need it

    namespace, separator, rest = name.rpartition("::")
    what = "operator" if separator else "namespace"
    # Names are compared without their common part.
    if separator:
        names = [each.removeprefix(f"{namespace}::") for each in names]
        names = [each if "." in rest else each.partition(".")[0] for each in names]
    else:
        names = [each.partition("::")[0] for each in names]
    close = difflib.get_close_matches(rest, [n for n in dict.fromkeys(names) if "::" not in n], n=2)
    meant = " or ".join(f"{namespace}{separator}{each}" for each in close)
    hint = f"did you mean {meant}?" if meant else ""
    return OperatorNotFoundError(f"there is no {what} {name}", hint=hint, operator=name)
