"""Plans of calls: the constant parts of calls with the same kinds of arguments. No I/O.

Note [Planned calls]
    The first two calls of an operator with arguments of certain kinds, dtypes and shapes take the
    general path. The second one leaves a plan: the constant bytes of its request and its reply, to
    which later calls add their id, timeout, elements, numbers and texts. See Note [Constant bytes].
    Calls whose shapes never recur leave no plan.

    Unusual calls take the general path: those with options, dicts, complex numbers, or tensors that
    require gradients or are not dense CPU tensors, and those of tasks with keys, modes, a profile
    or a trace set. So does a planned call that meets something unexpected: an outdated route, a
    lane that ends, or a reply of another form than the last.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.local_state.tracing_state import traces
from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.waiting_calls import may_move
from opdispatch_client.operator_call import Call, OperatorCall
from opdispatch_client.planned_keep import NewValue, PlannedKeep
from opdispatch_client.remote_value import held_ids, note_interpreter, remote_from_proto
from opdispatch_wire import trace_context
from opdispatch_wire.errors import WireError
from opdispatch_wire.planned_calls import LONGEST
from opdispatch_wire.planned_replies import ReplyLayout
from opdispatch_wire.planned_requests import RequestForm
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.variable_parts import take_value

T = TypeVar("T")

UNPLANNED: Final = object()
"""Returned in place of a result if no plan covers the call."""

MOST_SESSION_PLANS = 1024
"""Most plans that a session keeps."""

# Number of consecutive replies, each of a new form, after which no more forms are learned.
_MOST_MISSES = 16


class PlannedArguments:
    """The arguments of one call, and the ``key`` by which its plan is found."""

    __slots__ = ("args", "keep", "key", "kwargs", "leaves")

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Hashable,
        leaves: list[Any],
    ) -> None:
        self.args = args
        self.kwargs = kwargs
        self.key = key
        self.leaves = leaves
        """The variable parts of the arguments: see ``take_value``."""
        self.keep: PlannedKeep | None = None
        """Set if the results stay in the interpreter; None if they are returned."""

    def call(self, operator: str, *, retry: bool) -> OperatorCall:
        """Return the call, to make it on the general path."""
        keep = self.keep
        if keep is None:
            return OperatorCall(operator, self.args, self.kwargs, retry=retry)
        return OperatorCall(
            operator, self.args, self.kwargs, retry=retry, keep=keep.message(), make=keep.make
        )

    def abandon(self) -> None:
        """Release the results of a failed call, if it keeps any."""
        if self.keep is not None:
            self.keep.abandon()


def planned_arguments(
    operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PlannedArguments | None:
    """Return the arguments of a call for its plan; None if no plan can cover it."""
    if type(operator) is not str:
        return None
    key: list[Any] = [operator]
    leaves: list[Any] = []
    for value in args:
        if type(value) is np.ndarray and value.size:  # ``take_value``, inlined
            key += (value.dtype, value.shape)
            leaves.append(value)
        elif not take_value(value, key, leaves):
            return None
    for name, value in kwargs.items():
        key.append(name)
        if not take_value(value, key, leaves):
            return None
    return PlannedArguments(args, kwargs, tuple(key), leaves)


def nothing_is_set() -> bool:
    """Return whether this task has no keys or modes set, no profile and no trace."""
    return (
        LOCAL_STATE.get() is DEFAULT_STATE
        and AUTOGRAD_STATE.get().grad_mode
        and not traces()
        and (trace_context.API not in sys.modules or not trace_context.is_on())
    )


class CallPlan:
    """The request and reply of calls with the same key, and the lane on which they are sent."""

    __slots__ = (
        "_layout",
        "_misses",
        "_new",
        "alone",
        "form",
        "moves",
        "moves_values",
        "shape",
        "shares",
        "size",
        "way",
    )

    def __init__(
        self,
        form: RequestForm,
        shape: Hashable,
        way: DirectWay[Any] | None,
        *,
        moves: bool,
        moves_values: bool = False,
        new: NewValue | None = None,
    ) -> None:
        self.form = form
        """The form that writes the requests."""
        self._new = new
        self.size = form.size
        """An upper bound of the size of a request in bytes."""
        self.shape = shape
        """The shape by which routes are found: see ``call_shape``."""
        self.way = way
        """The direct way of the call that left the plan; None if it went through the daemon."""
        self.moves = moves
        """Whether a call may run twice; see ``may_move``."""
        self.moves_values = moves_values
        """Whether a call may move remote tensors: see ``result_of``."""
        self.shares = bool(form.shared)
        """Whether tensors of a call, or of the last reply, are in shared memory."""
        self.alone: CallPlan | None = None
        """The plan with all tensors inline, if that is cheaper for a call that is alone in flight.

        Shared memory has a fixed cost, about that of 500 KiB inline. But inline tensors of many
        calls in flight exceed the CPU caches.
        """
        self._layout: ReplyLayout | None = None
        self._misses = 0

    @classmethod
    def of(
        cls,
        request: execution_pb2.CallRequest,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        shape: Hashable,
        way: DirectWay[Any] | None,
        limit: int,
        new: NewValue | None = None,
    ) -> CallPlan | None:
        """Return the plan of calls like ``request``; None if it has no constant form.

        Requests have at most ``limit`` bytes. ``new`` makes the proxy of a kept result.
        """
        limit, moves = min(LONGEST, limit), way is not None and may_move(way, request)
        form = RequestForm.of(request, args, kwargs, limit)
        if form is None:
            return None
        # Direct calls go where the tensors are; the daemon may move them to where the call runs.
        moves_values = way is None and bool(held_ids((*args, *kwargs.values())))
        plan = cls(form, shape, way, moves=moves, moves_values=moves_values, new=new)
        if form.shared:
            inline = RequestForm.of(request, args, kwargs, limit, inline=True)
            if inline is not None:
                plan.alone = cls(inline, shape, way, moves=moves, new=new)
        return plan

    def read(
        self, payload: bytes | memoryview, place: int, memory: CallerMemory | None = None
    ) -> tuple[Any, ...] | None:
        """Return a tuple of the result in a reply whose id ends at ``place``: see ``result_of``.

        Return None if it is not plain, or is in shared memory while ``memory`` is None.
        """
        layout = self._layout
        if layout is not None and (result := layout.read(payload, place, memory)) is not None:
            self._misses = 0
            return result if not self.moves_values else (*result, layout.interpreter)
        if self._misses == _MOST_MISSES:
            return None
        self._misses += 1
        try:
            reply = execution_pb2.CallReply.FromString(bytes(payload))
            make_kept = None if self._new is None else self._make_kept
            layout = ReplyLayout.of(payload, reply, make_kept)
        except (DecodeError, WireError):
            return None  # the general path raises that error
        if layout is None:
            return None
        self._layout = layout
        self.shares = bool(self.form.shared or layout.shared)
        result = layout.read(payload, place, memory)
        if result is None or not self.moves_values:
            return result
        return *result, layout.interpreter

    def result_of(self, outcome: tuple[Any, ...], planned: PlannedArguments) -> Any:
        """Return the result in what ``read`` returned for a call with these arguments.

        Record where remote tensors among them are now.
        """
        if self.moves_values and outcome[1]:
            note_interpreter((*planned.args, *planned.kwargs.values()), outcome[1])
        return outcome[0]

    def _make_kept(self, message: values_pb2.RemoteTensor) -> Callable[[bytes], Any]:
        assert self._new is not None, "only called for plans that keep results"
        _, facts, interpreter = remote_from_proto(message, "$")
        return functools.partial(self._new, facts=facts, interpreter=interpreter)


class CallPlans:
    """The plans of one session. Any thread may use them: each change is one atomic operation."""

    def __init__(self) -> None:
        # The value None marks calls that cannot be planned.
        self._plans: dict[Hashable, CallPlan | None] = {}
        # Keys of calls made once: they are planned when they recur.
        self._seen: dict[Hashable, None] = {}
        self.find = self._plans.get
        """Return the plan for a key; None if there is none."""

    def learn(
        self, call: Call, request: execution_pb2.CallRequest, way: DirectWay[Any] | None, limit: int
    ) -> None:
        """Make a plan from a call on the general path, if it was not the first of its kind.

        ``way`` is None if it went through the daemon. Its lane takes requests of at most ``limit``
        bytes.
        """
        if not isinstance(call, OperatorCall) or (key := call.plan_key) is None:
            return
        if self._plans.get(key, key) is None:
            return
        if key not in self._plans:
            # Calls whose shapes never recur leave no plan.
            if key not in self._seen:
                _put(self._seen, key, None)
                return
            self._seen.pop(key, None)
        plan = CallPlan.of(request, call.args, call.kwargs, call.shape, way, limit, call.new)
        _put(self._plans, key, plan)


def _put(table: dict[Hashable, T], key: Hashable, value: T) -> None:
    """Insert a value; evict the oldest entry of a full table."""
    if len(table) >= MOST_SESSION_PLANS:
        with contextlib.suppress(StopIteration, KeyError, RuntimeError):
            del table[next(iter(table))]
    table[key] = value
