"""Registrations of one operator agree on its signature, or the later one is refused.

Mirrors ``OperatorEntry::registerSchema`` and the check of C++ signatures in
``OperatorEntry::registerKernel``. Only kernels that say their signature take part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opdispatch.errors import SchemaMismatchError
from opdispatch.function_schema import FunctionSchema
from opdispatch.registration import Registration

if TYPE_CHECKING:
    from opdispatch.operator_entry import OperatorEntry


def check_signatures(entry: OperatorEntry | None, registration: Registration) -> None:
    """Compares a definition or kernel with what ``entry`` has. The caller holds the mutex.

    Raises SchemaMismatchError, which names both places.
    """
    signature = signature_of(registration)
    if entry is None or signature is None:
        return
    for other in _registrations_of(entry):
        theirs = signature_of(other)
        difference = theirs.find_differences(signature) if theirs is not None else None
        if difference is not None:
            raise SchemaMismatchError(
                f"{_named(other, entry)}, {other.debug}, and {_named(registration, entry)}, "
                f"{registration.debug}, do not have the same signature: {difference}",
                operator=str(entry.name),
                first_site=other.site,
                second_site=registration.site,
                difference=difference,
            )


def signature_of(registration: Registration) -> FunctionSchema | None:
    """What a definition or kernel says of arguments and returns, if it says anything."""
    if registration.kind == "def":
        return registration.schema
    return registration.kernel.signature if registration.kernel is not None else None


def _registrations_of(entry: OperatorEntry) -> Iterator[Registration]:
    """The definition first, then the kernels."""
    for handles in (entry.definitions, *entry.kernels.values()):
        for handle in handles:
            yield handle.registration


def _named(registration: Registration, entry: OperatorEntry) -> str:
    if registration.kind == "def":
        return f"the definition {registration.schema}"
    return f"the {registration.key} kernel {signature_of(registration)} of {entry.name}"
