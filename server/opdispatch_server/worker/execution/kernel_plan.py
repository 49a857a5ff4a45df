"""The plan of calls that are alike: which kernel runs, on what, and how its results are sent.

See Note [Planned calls] in ``opdispatch_client.lanes.call_plan``: this is the callee's half. A plan
is made once a call that says its constant bytes has been run the general way, and holds in one
epoch of the registry. Whatever a planned call meets that is not plain is left to the general way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import backends_with_blocks
from opdispatch.errors import OpdispatchError
from opdispatch.schema.types import STR, TENSOR, OptionalType
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.plan_table import PlanTable
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.planned_replies import ReplyForm
from opdispatch_wire.planned_requests import COUNT, PLAIN_FIELDS, Received, RequestLayout
from opdispatch_wire.shared_memory.call_memory import THRESHOLD
from opdispatch_wire.tensor_bytes import count_bytes
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.variable_parts import Leaf, filled

# Values that no kernel can change.
_CONSTANTS = (bool, int, float, complex, str, type(None), np.dtype)
_TEXTS = (STR, OptionalType(STR))


class _ConvertedError(Exception):
    """An argument is not what the kernel gets for it."""


class KernelPlan:
    """Of calls whose requests differ in nothing but id, timeout and leaves."""

    __slots__ = (
        "_constants",
        "_is_in_order",
        "_template",
        "argument_bytes",
        "blocks",
        "choice",
        "epoch",
        "form",
        "has_only_leaves",
        "is_inline",
        "layout",
        "library",
        "limit",
        "operator",
        "returns_tensor",
        "run",
        "shares",
    )

    def __init__(
        self,
        layout: RequestLayout,
        operator: str,
        library: LoadedLibrary,
        choice: ChosenKernel,
        template: list[Any] | None,
        argument_bytes: int,
        epoch: int,
        run: int,
    ) -> None:
        self.layout = layout
        self.operator = operator
        self.library = library
        self.choice = choice
        # That of all the kernel gets; None: what it gets is to be found for each call.
        self._template = template
        leaves = [each for each in template or () if type(each) is Leaf]
        constants = [] if template is None else template[len(leaves) :]
        # Most often, the leaves come first, in the order of the request.
        self._is_in_order = (
            template is not None
            and template[: len(leaves)] == [Leaf(place) for place in range(len(leaves))]
            and not any(type(each) is list for each in constants)
        )
        self._constants = tuple(constants)
        self.has_only_leaves = self._is_in_order and not constants
        """Whether the kernel gets the leaves as they are: what ``stack`` returns then."""
        self.argument_bytes = argument_bytes
        """See ``RunningCall``."""
        self.epoch = epoch
        self.run = run
        """See ``RunningCall.run``."""
        self.limit = min(library.max_concurrency, KERNEL_THREADS)
        # A backend that comes with a library comes with an epoch of its own.
        self.blocks: tuple[ArrayBackend, ...] = backends_with_blocks()
        returns = choice.signature.schema.returns
        self.returns_tensor = len(returns) == 1 and returns[0].type == TENSOR
        """Whether that is all that the operator returns."""
        self.form: ReplyForm | None = None
        """That of the last reply."""
        self.is_inline = not layout.shared and layout.longest >= THRESHOLD
        """Whether the requests have tensors in them that could be in shared memory."""
        self.shares = bool(layout.shared)
        """Whether tensors of a call, or of the last reply, are in shared memory."""

    def learn(self, form: ReplyForm | None) -> None:
        """Note the form of a reply, which the next ones are likely to have; None: it has none."""
        self.form = form
        self.shares = bool(self.layout.shared or (form is not None and form.shared))

    def stack(self, leaves: list[Any]) -> list[Any]:
        """Return what the kernel gets, with these leaves. Raises what ``Signature.bind`` does."""
        if self._is_in_order:
            return [*leaves, *self._constants]
        if self._template is not None:
            return [filled(each, leaves) for each in self._template]
        args = [filled(each, leaves) for each in self.layout.args]
        kwargs = {name: filled(each, leaves) for name, each in self.layout.kwargs.items()}
        return self.choice.signature.bind(args, kwargs)


class KernelPlans:
    """Those of one epoch of the registry. Any thread may use them: each change is one step."""

    def __init__(
        self, values: ValueStore, epoch: int = 0, run: int = 0, *, relayed: bool = False
    ) -> None:
        """``run`` is the daemon's number for direct calls: see ``CallContext``.

        Each call that is ``relayed`` by the daemon has one of its own.
        """
        self._values = values
        self._epoch = epoch
        self._run = run
        self._fields = PLAIN_FIELDS | {"path"} if relayed else PLAIN_FIELDS
        self._relayed = relayed
        self._table: PlanTable[KernelPlan] = PlanTable()
        self._plans = self._table.plans

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
                    if plan.layout.remote and not self._find_values(plan.layout, received[2]):
                        return None
                    keeps_for = plan.layout.keeps_for
                    if keeps_for and not self._values.keeps.has_room(keeps_for):
                        return None
                    return plan, received
        return None

    def _find_values(self, layout: RequestLayout, leaves: list[Any]) -> bool:
        """Put values in the place of their ids; return whether all of them are here."""
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
        """Plan calls like one that has just run here, if they can be."""
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
        if not layout.remote:  # tensors in a message require no gradients
            choice = choice.without_gradients()
        if layout.keeps_for:
            received[2].pop()
        try:
            leaves = layout.filled_with_blanks(received[2])
            template = _template_of(choice, layout, leaves)
        except _ConvertedError:
            template = None
        except OpdispatchError:  # which the call has raised
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
    """Return the template of what the kernel gets for arguments in such a request.

    Raises _ConvertedError if it is not theirs, and ArgumentError.
    """
    schema = choice.signature.schema
    by_name = [layout.kwargs.get(each.name) for each in schema.arguments[len(layout.args) :]]
    given = [*layout.args, *by_name]
    args = [filled(each, leaves) for each in layout.args]
    kwargs = {name: filled(each, leaves) for name, each in layout.kwargs.items()}
    bound = choice.signature.bind(args, kwargs)
    for argument, template in zip(schema.arguments, given, strict=True):
        # A text that stands for a device is looked at.
        if argument.type not in _TEXTS and _has_text(template, leaves):
            raise _ConvertedError
    return [_merged(*each, leaves) for each in zip(given, bound, strict=True)]


def _has_text(template: Any, leaves: list[Any]) -> bool:
    if type(template) is list:
        return any(_has_text(each, leaves) for each in template)
    return type(template) is Leaf and type(leaves[template.number]) is str


def _merged(template: Any, bound: Any, leaves: list[Any]) -> Any:
    """Return the template of what a kernel gets as ``bound`` for what ``template`` stands for."""
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
