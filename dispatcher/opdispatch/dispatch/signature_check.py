"""The check that all registrations of one operator agree on its signature.

Mirrors ``OperatorEntry::registerSchema`` and the check of C++ signatures in
``OperatorEntry::registerKernel``. Only kernels that declare their signature take part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opdispatch.dispatch.registration import Registration
from opdispatch.errors import SchemaMismatchError
from opdispatch.schema.function_schema import FunctionSchema

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_entry import OperatorEntry


def check_signatures(entry: OperatorEntry | None, registration: Registration) -> None:
    """Compare a definition or kernel with those of ``entry``. The caller holds the mutex.

    Raises SchemaMismatchError, which names both places. Its text does not depend on whether a
    definition or a kernel came first.
    """
    if entry is None or signature_of(registration) is None:
        return
    for other in _registrations_of(entry):
        # The definition states what is expected, whether it is older or newer.
        one, two = (registration, other) if registration.kind == "def" else (other, registration)
        expected, found = signature_of(one), signature_of(two)
        if expected is None or found is None:
            continue
        difference = expected.find_differences(found)
        if difference is not None:
            raise SchemaMismatchError(
                f"{_named(one, entry)}, {one.debug}, and {_named(two, entry)}, {two.debug}, "
                f"do not have the same signature: {difference}",
                operator=str(entry.name),
                first_site=other.site,
                second_site=registration.site,
                difference=difference,
            )


def signature_of(registration: Registration) -> FunctionSchema | None:
    """Return the signature that a definition or kernel declares; None if it declares none."""
    if registration.kind == "def":
        return registration.schema
    return registration.kernel.signature if registration.kernel is not None else None


def _registrations_of(entry: OperatorEntry) -> Iterator[Registration]:
    """Yield the definition first, then the kernels."""
    for handles in (entry.definitions, *entry.kernels.values()):
        for handle in handles:
            yield handle.registration


def _named(registration: Registration, entry: OperatorEntry) -> str:
    if registration.kind == "def":
        return f"the definition {registration.schema}"
    return f"the {registration.key} kernel {signature_of(registration)} of {entry.name}"
