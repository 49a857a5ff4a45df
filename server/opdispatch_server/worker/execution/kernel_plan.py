"""The plan of calls that are alike: which kernel runs, on what, and how its result is sent.

See Note [Planned calls] in ``opdispatch_client.lanes.call_plan``: this is the callee's half. A plan
is made once a call that says its constant bytes has been run the general way, and holds in one
epoch of the registry. Whatever a planned call meets that is not plain is left to the general way.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import backends_with_blocks
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.plain_calls import plain_array
from opdispatch_wire.planned_calls import (
    COUNT,
    LONGEST,
    PLAIN_FIELDS,
    Received,
    ReplyForm,
    RequestLayout,
)
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import value_from_proto

MOST_PLANS: Final = 4096
"""How many an interpreter keeps: clients say themselves which bytes are constant."""

_MOST_ALIKE = 16
_UNPLANNED: Final = object()
_CONSTANT_KINDS = {"none", "boolean", "integer", "floating", "text"}
# Arguments that no kernel can change.
_CONSTANTS = (bool, int, float, complex, str, type(None))


class KernelPlan:
    """Of calls whose requests differ in nothing but id, timeout and elements."""

    __slots__ = (
        "blocks",
        "choice",
        "constants",
        "epoch",
        "form",
        "layout",
        "library",
        "limit",
        "mixed",
        "operator",
        "run",
    )

    def __init__(
        self,
        layout: RequestLayout,
        operator: str,
        library: LoadedLibrary,
        choice: ChosenKernel,
        constants: tuple[Any, ...],
        mixed: tuple[tuple[Any, ...], tuple[int, ...]] | None,
        epoch: int,
        run: int,
    ) -> None:
        self.layout = layout
        self.operator = operator
        self.library = library
        self.choice = choice
        self.constants = constants
        """Arguments of the kernel after the arrays."""
        self.mixed = mixed
        """Where arrays come after constants: all arguments, None for arrays; and their places."""
        self.epoch = epoch
        self.run = run
        """See ``RunningCall.run``."""
        self.limit = min(library.max_concurrency, KERNEL_THREADS)
        # A backend that comes with a library comes with an epoch of its own.
        self.blocks: tuple[ArrayBackend, ...] = backends_with_blocks()
        self.form: ReplyForm | None = None
        """That of the last reply."""

    def stack(self, arrays: list[Any]) -> list[Any]:
        """Return what the kernel gets, with these arrays."""
        if self.mixed is None:
            return [*arrays, *self.constants]
        template, places = self.mixed
        stack = list(template)
        for place, array in zip(places, arrays, strict=True):
            stack[place] = array
        return stack


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
        if len(self._plans) >= MOST_PLANS or request.route_epoch != self._epoch:
            return
        if not choice.may_be_plain or library.backends:
            return
        if {field.name for field, _ in request.ListFields()} - PLAIN_FIELDS:
            return
        layout = RequestLayout.of(payload, request)
        arguments = [_argument(value) for value in request.args]
        if layout is None or any(value is _UNPLANNED for value in arguments):
            return
        bound = choice.signature.bind(arguments, {})
        places = [at for at, value in enumerate(arguments) if isinstance(value, np.ndarray)]
        if any(bound[at] is not arguments[at] for at in places):
            return
        constant = [value for at, value in enumerate(bound) if at not in places]
        if not all(type(value) in _CONSTANTS for value in constant):
            return
        template = [None if at in places else value for at, value in enumerate(bound)]
        is_in_order = places == list(range(len(places)))
        plan = KernelPlan(
            layout,
            request.operator,
            library,
            choice,
            tuple(template[len(places) :]) if is_in_order else (),
            None if is_in_order else (tuple(template), tuple(places)),
            self._epoch,
            self._run,
        )
        plans = self._plans.setdefault(layout.constant, [])
        if len(plans) < _MOST_ALIKE:
            plans.append(plan)


def _argument(message: values_pb2.Value) -> Any:
    """Return an argument of a planned call; _UNPLANNED for one that is no array or constant."""
    kind = message.WhichOneof("kind")
    if kind == "tensor":
        array = plain_array(message.tensor)
        return _UNPLANNED if array is None else array
    if kind not in _CONSTANT_KINDS:
        return _UNPLANNED
    return value_from_proto(message)
