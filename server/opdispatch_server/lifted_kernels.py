"""Registering a kernel below newer ones: of several kernels for one slot, the newest wins.

Overloads of one name are tried in the order of their definitions, so these are treated alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from opdispatch import Dispatcher, OperatorName, Registration
from opdispatch.dispatch.registration import RegistrationHandle


class LiftedKernels:
    """Those of ``handles`` that are above some of ``below``, unregistered until ``put_back``.

    Both happen within one transaction, so that no call finds them missing. Of definitions, these
    are overloads of the names that ``below`` defines.
    """

    def __init__(
        self, handles: Sequence[RegistrationHandle], below: Sequence[Registration]
    ) -> None:
        operators = {name for each in below if (name := operator_of(each)) is not None}
        names = {operator.name for operator in operators}
        has_fallbacks = any(each.kind == "fallback" for each in below)

        def is_above(registration: Registration) -> bool:
            if registration.schema is not None:
                return registration.schema.name.name in names
            if registration.kind == "fallback":
                return has_fallbacks
            return registration.kind == "impl" and registration.name in operators

        self._handles = handles
        self._places = [
            place
            for place, handle in enumerate(handles)
            if handle.live and is_above(handle.registration)
        ]
        for place in reversed(self._places):
            handles[place].close()

    def put_back(self, dispatcher: Dispatcher) -> list[RegistrationHandle]:
        """Register the kernels again.

        Return all of the handles, with new ones for these kernels.
        """
        handles = list(self._handles)
        for place in self._places:
            handles[place] = dispatcher.register(handles[place].registration)
        return handles


def operator_of(registration: Registration) -> OperatorName | None:
    """Return the operator that it defines, or has a kernel for."""
    if registration.schema is not None:
        return registration.schema.name
    return registration.name
