"""The plans of one epoch of the registry: which calls may be planned, and which plan fits a call.

A new epoch begins with an empty set of plans, so no call follows a plan of another epoch; one that
was found just before is refused by ``DirectCalls.admit_planned``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch.errors import OpdispatchError
from opdispatch.schema.types import STR, OptionalType
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.plan_table import PlanTable
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.planned_requests import COUNT, PLAIN_FIELDS, Received, RequestLayout
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.variable_parts import Leaf, filled

# Types of immutable values, which calls of one plan can share.
_CONSTANTS = (bool, int, float, complex, str, type(None), np.dtype)
_TEXTS = (STR, OptionalType(STR))


class _ConvertedError(Exception):
    """An argument is converted before the kernel gets it, so that there is no fixed template."""


class EpochPlans:
    """The plans of one epoch. Thread-safe without a lock: each change is one atomic operation."""

    def __init__(
        self, values: ValueStore, epoch: int = 0, run: int = 0, *, relayed: bool = False
    ) -> None:
        """Make an empty set of plans.

        ``run`` is the daemon's run number for direct calls: see ``CallContext``. Calls ``relayed``
        by the daemon each bring their own.
        """
        self._values = values
        self._epoch = epoch
        self._run = run
        self._fields = PLAIN_FIELDS | {"path"} if relayed else PLAIN_FIELDS
        self._relayed = relayed
        self._table: PlanTable[KernelPlan] = PlanTable()
        self._plans = self._table.plans

    def find(self, payload: bytes) -> tuple[KernelPlan, Received] | None:
        """Return the plan of a request and its variable parts; None for the general path."""
        if not COUNT.size < len(payload) <= LONGEST:
            return None
        # ``constant_bytes_of``, inlined without its check of the tag: other bytes are not found.
        plans = self._plans.get(payload[: COUNT.unpack_from(payload)[1]])
        if plans is not None:
            for plan in plans:
                received = plan.layout.read(payload)
                if received is not None:
                    if plan.layout.remote and not self._find_values(plan.layout, received[2]):
                        return None
                    keeps_for = plan.layout.keeps_for
                    if keeps_for and not self._values.keeps.has_room(keeps_for):
                        return None
                    return plan, received
        return None

    def _find_values(self, layout: RequestLayout, leaves: list[Any]) -> bool:
        """Replace ids of remote tensors by their values; return whether all values are here."""
        find = self._values.find_here
        for number, session in layout.remote:
            value = leaves[number] = find(session, leaves[number])
            if value is None:
                return False
        return True

    def add(
        self,
        payload: bytes,
        request: execution_pb2.CallRequest,
        library: LoadedLibrary,
        choice: ChosenKernel,
    ) -> None:
        """Plan calls like one that has just run here, unless that is impossible."""
        if request.route_epoch != self._epoch:
            return
        if not choice.may_be_planned or library.backends or self._table.has(payload):
            return
        if {field.name for field, _ in request.ListFields()} - self._fields:
            return
        layout = RequestLayout.of(payload, request)
        received = None if layout is None else layout.read(payload)
        if layout is None or received is None or layout.has_run != self._relayed:
            return
        if layout.has_run:
            if request.path.depth or request.path.queued:
                return
            received[2].pop()
        if layout.remote and not self._find_values(layout, received[2]):
            return
        if not layout.remote:  # tensors in a planned message never require gradients
            choice = choice.without_gradients()
        if layout.keeps_for:
            received[2].pop()
        try:
            leaves = layout.filled_with_blanks(received[2])
            template = _template_of(choice, layout, leaves)
        except _ConvertedError:
            template = None
        except OpdispatchError:  # the call itself has failed with it
            return
        self._table.add(
            KernelPlan(
                layout,
                request.operator,
                library,
                choice,
                template,
                count_bytes(leaves),
                self._epoch,
                self._run,
            )
        )


def _template_of(choice: ChosenKernel, layout: RequestLayout, leaves: list[Any]) -> list[Any]:
    """Return the template of the kernel's arguments, in terms of the request's leaves.

    Raises _ConvertedError if an argument is converted on the way, and ArgumentError.
    """
    schema = choice.signature.schema
    by_name = [layout.kwargs.get(each.name) for each in schema.arguments[len(layout.args) :]]
    given = [*layout.args, *by_name]
    args = [filled(each, leaves) for each in layout.args]
    kwargs = {name: filled(each, leaves) for name, each in layout.kwargs.items()}
    bound = choice.signature.bind(args, kwargs)
    for argument, template in zip(schema.arguments, given, strict=True):
        # Binding parses a text that stands for another type, such as a device.
        if argument.type not in _TEXTS and _has_text(template, leaves):
            raise _ConvertedError
    return [_merged(*each, leaves) for each in zip(given, bound, strict=True)]


def _has_text(template: Any, leaves: list[Any]) -> bool:
    if type(template) is list:
        return any(_has_text(each, leaves) for each in template)
    return type(template) is Leaf and type(leaves[template.number]) is str


def _merged(template: Any, bound: Any, leaves: list[Any]) -> Any:
    """Return the template of a bound argument, given the template of the one in the request."""
    if type(template) is Leaf:
        if bound is not leaves[template.number]:
            raise _ConvertedError
        return template
    if type(bound) is list:
        parts = template if type(template) is list else [None] * len(bound)
        if len(parts) != len(bound):
            raise _ConvertedError
        return [_merged(part, each, leaves) for part, each in zip(parts, bound, strict=True)]
    if type(template) is list or not isinstance(bound, _CONSTANTS):
        raise _ConvertedError
    return bound
