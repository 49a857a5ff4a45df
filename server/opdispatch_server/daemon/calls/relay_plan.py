"""Relay planned calls by their constant bytes: see Note [Planned calls] in the client.

A plan is made from a call that declares its constant bytes and can be forwarded at once, after it
has been parsed and checked. It is valid until the next publication. Later calls are not parsed:
it is enough that their constant bytes are those of the first one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from opdispatch_server.call_context import FOREVER
from opdispatch_server.daemon.calls.kernel_choice import Choice
from opdispatch_server.daemon.calls.retry import may_run_twice
from opdispatch_server.daemon.libraries.device_holders import takes_device
from opdispatch_server.daemon.libraries.direct_routes import has_text
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.serving.call_protocols import AbandonableCall
from opdispatch_wire.chunks import BESIDE_BYTES, CallTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.plan_table import PlanTable
from opdispatch_wire.planned_replies import ReplyLayout, reply_with_id
from opdispatch_wire.planned_requests import (
    PLAIN_FIELDS,
    RelayForm,
    RequestLayout,
    constant_bytes_of,
)
from opdispatch_wire.v1 import execution_pb2

# After so many replies in a row, each of a new form, no more layouts are made.
_MOST_MISSES = 16


class RelayPlan:
    """The plan of calls whose requests differ only in id, timeout and leaves."""

    __slots__ = (
        "_forms",
        "_misses",
        "_reply",
        "choice",
        "layout",
        "library",
        "may_move",
        "operator",
    )

    def __init__(
        self,
        layout: RequestLayout,
        choice: Choice,
        library: LibraryVersion,
        place: int,
        *,
        may_move: bool,
    ) -> None:
        self.layout = layout
        self._reply: ReplyLayout | None = None  # of the last reply
        self._misses = 0
        self.choice = choice
        self.library = library
        self.operator = str(choice.op.name)
        self.may_move = may_move
        """Whether another interpreter may run such a call if the first one is busy."""
        head = execution_pb2.CallRequest()
        choice.name_kernel(head, library.load_id, place)
        head.path.lane, head.path.limit = library.load_id, library.max_concurrency
        self._forms = [RelayForm(layout, head)]
        head.chunks_reply = True
        self._forms.append(RelayForm(layout, head))

    def form(self, tensors: CallTensors) -> RelayForm:
        """Return the form of requests, which depends on whether results may have any size."""
        return self._forms[tensors.results_of_any_size]

    def rest_of(self, payload: bytes | memoryview, place: int) -> bytes | None:
        """Return the bytes after the id, which ends at ``place``, if the reply has a known form.

        Otherwise return None; the reply then has to be parsed.
        """
        if self._reply is not None and self._reply.read(payload, place) is not None:
            self._misses = 0
            return bytes(payload[place:])
        if self._misses < _MOST_MISSES:
            self._misses += 1
            with contextlib.suppress(DecodeError, WireError):  # the general path raises it
                reply = execution_pb2.CallReply.FromString(bytes(payload))
                self._reply = ReplyLayout.of(payload, reply) or self._reply
        return None


class RelayPlans:
    """The plans of one epoch of the dispatcher. For use in the event loop only."""

    def __init__(self, operators: OperatorRegistry) -> None:
        self._operators = operators
        self._epoch = -1
        self._table: PlanTable[RelayPlan] = PlanTable()

    def find(self, payload: bytes) -> tuple[RelayPlan, int, float | None] | None:
        """Return the plan of a request, its id and its timeout in seconds; None without a plan."""
        if not self._table.plans or self._operators.dispatcher.epoch != self._epoch:
            return None
        for plan in self._table.plans.get(constant_bytes_of(payload), ()):
            # The leaves are read only to check that they are well-formed.
            if (received := plan.layout.read(payload)) is not None:
                number, timeout, _ = received
                return plan, number, timeout
        return None

    def add(
        self,
        payload: bytes,
        request: execution_pb2.CallRequest,
        choice: Choice,
        library: LibraryVersion,
        place: int,
        epoch: int,
    ) -> None:
        """Add a plan for calls like ``request``, which is about to be forwarded, if possible.

        ``epoch`` is that of the dispatcher before the choice: another thread may have published
        a change since then, and the plan must not outlive it.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._table.clear()
        if choice.writes or len(payload) > BESIDE_BYTES or self._table.has(payload):
            return
        if {field.name for field, _ in request.ListFields()} - PLAIN_FIELDS:
            return
        if has_text(request) and self._is_chosen_by_text(choice):
            return
        layout = RequestLayout.of(payload, request)
        if layout is None or layout.keeps_for or layout.remote or layout.shared:
            return
        if len(layout.constant) < layout.arguments[0]:
            return
        may_move = may_run_twice(request, writes=choice.writes)
        self._table.add(RelayPlan(layout, choice, library, place, may_move=may_move))

    def _is_chosen_by_text(self, choice: Choice) -> bool:
        """Return whether another text, such as a device name, could lead to another kernel."""
        names_device = any(takes_device(argument.type) for argument in choice.op.schema.arguments)
        return names_device or len(self._operators.dispatcher.overloads(choice.op.name.name)) > 1


class RelayedCall:
    """A ``PlannedCall`` in the daemon; ``begin_at_once`` forwards it."""

    def __init__(
        self,
        plan: RelayPlan,
        number: int,
        timeout: float | None,
        payload: bytes,
        begin_at_once: Callable[[RelayedCall, Callable[[Any], None]], AbandonableCall | None],
    ) -> None:
        self.plan = plan
        self.number = number
        """The id that the caller has given the call."""
        self.timeout = timeout
        """The timeout in seconds on arrival; None without one."""
        self.deadline = None if timeout is None else time.monotonic() + timeout
        """When the caller stops waiting, by ``time.monotonic``; None without a limit."""
        self._payload = payload
        self._begin_at_once = begin_at_once
        self._form: RelayForm | None = None
        self._running: AbandonableCall | None = None

    @property
    def request(self) -> execution_pb2.CallRequest:
        """The request, parsed for the general path."""
        return execution_pb2.CallRequest.FromString(self._payload)

    def begin(self, on_reply: Callable[[Any], None], limit: int, tensors: CallTensors) -> bool:
        """Begin the call: see ``PlannedCall.begin``."""
        # Written with ``not`` so that NaN, which fails every comparison, is refused.
        if self.timeout is not None and not 0.0 < self.timeout <= FOREVER:
            return False
        self._form = self.plan.form(tensors)

        def end(result: Any) -> None:
            self._running = None  # refers to this function: breaks the cycle
            if isinstance(result, bytes):
                result = reply_with_id(result, self.number)
                if len(result) > limit:
                    result = execution_pb2.CallReply.FromString(result)
            on_reply(result)

        self._running = self._begin_at_once(self, end)
        return self._running is not None

    def encode(self, run: int, number: int) -> bytes:
        """Return the request to the interpreter, for the run and with the id ``number``."""
        assert self._form is not None, "begin sets it"
        return self._form.write(self._payload, run, self.timeout, number)

    def abandon(self) -> None:
        """Discard the reply when it comes. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.abandon()
