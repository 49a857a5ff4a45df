"""The plan of calls that are alike: which kernel runs, on what, and how its result is sent.

See Note [Planned calls] in ``opdispatch_client.lanes.call_plan``: this is the callee's half. A plan
is made once a call that says its constant bytes has been run the general way, and holds in one
epoch of the registry. Whatever a planned call meets that is not plain is left to the general way.
"""

from __future__ import annotations

from typing import Any, Final

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import backends_with_blocks
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.plain_calls import plain_arguments
from opdispatch_wire.planned_calls import (
    COUNT,
    LONGEST,
    PLAIN_FIELDS,
    Received,
    ReplyForm,
    RequestLayout,
)
from opdispatch_wire.v1 import execution_pb2

MOST_PLANS: Final = 4096
"""How many an interpreter keeps: clients say themselves which bytes are constant."""

_MOST_ALIKE = 16
# Defaults that no kernel can change.
_CONSTANTS = (bool, int, float, complex, str, type(None))


class KernelPlan:
    """Of calls whose requests differ in nothing but id, timeout and elements."""

    __slots__ = (
        "blocks",
        "choice",
        "defaults",
        "epoch",
        "form",
        "layout",
        "library",
        "limit",
        "operator",
        "run",
    )

    def __init__(
        self,
        layout: RequestLayout,
        operator: str,
        library: LoadedLibrary,
        choice: ChosenKernel,
        defaults: tuple[Any, ...],
        epoch: int,
        run: int,
    ) -> None:
        self.layout = layout
        self.operator = operator
        self.library = library
        self.choice = choice
        self.defaults = defaults
        """Arguments that the kernel gets after the call's."""
        self.epoch = epoch
        self.run = run
        """See ``RunningCall.run``."""
        self.limit = min(library.max_concurrency, KERNEL_THREADS)
        # A backend that comes with a library comes with an epoch of its own.
        self.blocks: tuple[ArrayBackend, ...] = backends_with_blocks()
        self.form: ReplyForm | None = None
        """That of the last reply."""


class KernelPlans:
    """Those of one epoch of the registry. Any thread may use them: each change is one step."""

    def __init__(self, epoch: int = 0, run: int = 0) -> None:
        """``run`` is the daemon's number for direct calls: see ``CallContext``."""
        self._epoch = epoch
        self._run = run
        # Requests may have the same constant bytes, and differ in later arguments' shapes.
        self._plans: dict[bytes, list[KernelPlan]] = {}

    def find(self, payload: bytes) -> tuple[KernelPlan, Received] | None:
        """Return the plan of a request, and what is not constant in it."""
        if not COUNT.size < len(payload) <= LONGEST:
            return None
        # ``constant_bytes_of``, in line; what says something else is in no table.
        plans = self._plans.get(payload[: COUNT.unpack_from(payload)[1]])
        if plans is not None:
            for plan in plans:
                received = plan.layout.read(payload)
                if received is not None:
                    return plan, received
        return None

    def add(
        self,
        payload: bytes,
        request: execution_pb2.CallRequest,
        library: LoadedLibrary,
        choice: ChosenKernel,
    ) -> None:
        """Plan calls like one that has just run here, if they can be."""
        if request.route_epoch != self._epoch or not choice.may_be_plain or library.backends:
            return
        if {field.name for field, _ in request.ListFields()} - PLAIN_FIELDS:
            return
        arguments, layout = plain_arguments(request), RequestLayout.of(payload, request)
        if arguments is None or layout is None:
            return
        bound = choice.signature.bind(arguments, {})
        defaults = tuple(bound[len(arguments) :])
        is_as_sent = all(one is other for one, other in zip(bound, arguments, strict=False))
        if not is_as_sent or not all(type(each) in _CONSTANTS for each in defaults):
            return
        plan = KernelPlan(
            layout, request.operator, library, choice, defaults, self._epoch, self._run
        )
        plans = self._plans.setdefault(layout.constant, [])
        if len(self._plans) <= MOST_PLANS and len(plans) < _MOST_ALIKE:
            plans.append(plan)
