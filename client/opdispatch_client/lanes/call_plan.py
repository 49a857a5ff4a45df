"""Plans of calls: the facts that calls of arrays of the same types and shapes share. No I/O.

Note [Planned calls]
    The second direct call of an operator with arguments of certain kinds, dtypes and shapes is
    made the general way, as the first one was, and leaves a plan: the bytes of its request but for
    what differs from call to call, which are its id, the time left, the elements, the numbers
    and the texts; and those of its reply. See Note [Constant bytes]. So calls that are all of
    different shapes leave no plan each.

    A plan covers nothing unusual: options, dicts and complex numbers, tensors that are remote,
    require gradients or are not dense ones of the CPU, keys or modes that a task has set, profiles
    and traces take the general way. So does what a planned call meets: a route that holds no
    more, a lane that ends, a reply that is another one than the last.
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
from opdispatch_client.remote_value import held_ids, remote_from_proto
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
"""Stands for the result of a call that no plan covers."""

MOST_PLANS = 1024
"""How many a session keeps."""

# After so many replies in a row of other forms than the last one, the next ones will be as well.
_MOST_MISSES = 16


class PlannedArguments:
    """The arguments of one call, and the ``key`` of the plan that covers it."""

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
        """The parts that are not constant: see ``take_value``."""
        self.keep: PlannedKeep | None = None
        """The results that stay in the interpreter; None: they come."""

    def call(self, operator: str, *, retry: bool) -> OperatorCall:
        """Return the call, to go on with it the general way."""
        keep = self.keep
        if keep is None:
            return OperatorCall(operator, self.args, self.kwargs, retry=retry)
        return OperatorCall(
            operator, self.args, self.kwargs, retry=retry, keep=keep.message(), make=keep.make
        )

    def abandon(self) -> None:
        """Release what the call keeps, if it does: it has failed."""
        if self.keep is not None:
            self.keep.abandon()


def planned_arguments(
    operator: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> PlannedArguments | None:
    """Return the arguments of a call that a plan may cover; None if none does."""
    if type(operator) is not str:
        return None
    key: list[Any] = [operator]
    leaves: list[Any] = []
    for value in args:
        if type(value) is np.ndarray and value.size:  # ``take_value``, in line
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
    """Return whether this task has set no keys and modes, and has no profile and no trace."""
    return (
        LOCAL_STATE.get() is DEFAULT_STATE
        and AUTOGRAD_STATE.get().grad_mode
        and not traces()
        and (trace_context.API not in sys.modules or not trace_context.is_on())
    )


class CallPlan:
    """The request of such calls, their replies, and the way that they go."""

    __slots__ = (
        "_layout",
        "_misses",
        "_new",
        "alone",
        "form",
        "moves",
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
        new: NewValue | None = None,
    ) -> None:
        self.form = form
        """The form that writes the requests."""
        self._new = new
        self.size = form.size
        """The bytes of a request, at most."""
        self.shape = shape
        """See ``call_shape``."""
        self.way = way
        """That of the call which has left the plan; None: through the daemon."""
        self.moves = moves
        """Whether a call may run twice; see ``may_move``."""
        self.shares = bool(form.shared)
        """Whether tensors of a call, or of the last reply, are in shared memory."""
        self.alone: CallPlan | None = None
        """The plan with all tensors in the message, where that costs a lone caller less.

        The fixed cost of shared memory is that of some 500 KiB in messages; but calls that are in
        flight together in messages touch more memory than the caches hold.
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
        """Return the plan that a request leaves; None where the elements are not in it.

        Its requests have at most ``limit`` bytes. ``new`` makes what stands for a kept result.
        """
        limit, moves = min(LONGEST, limit), way is not None and may_move(way, request)
        form = RequestForm.of(request, args, kwargs, limit)
        if form is None:
            return None
        plan = cls(form, shape, way, moves=moves, new=new)
        if form.shared:
            inline = RequestForm.of(request, args, kwargs, limit, inline=True)
            if inline is not None:
                plan.alone = cls(inline, shape, way, moves=moves, new=new)
        return plan

    def read(
        self, payload: bytes | memoryview, place: int, memory: CallerMemory | None = None
    ) -> tuple[Any] | None:
        """Return the result in a reply whose id ends at ``place``, in a tuple of its own.

        None if it is not plain, or in shared memory where the call has no ``memory``.
        """
        layout = self._layout
        if layout is not None and (result := layout.read(payload, place, memory)) is not None:
            self._misses = 0
            return result
        if self._misses == _MOST_MISSES:
            return None
        self._misses += 1
        try:
            reply = execution_pb2.CallReply.FromString(bytes(payload))
            make_kept = None if self._new is None else self._make_kept
            layout = ReplyLayout.of(payload, reply, make_kept)
        except (DecodeError, WireError):
            return None  # the general way raises that error
        if layout is None:
            return None
        self._layout = layout
        self.shares = bool(self.form.shared or layout.shared)
        return layout.read(payload, place, memory)

    def _make_kept(self, message: values_pb2.RemoteTensor) -> Callable[[bytes], Any]:
        assert self._new is not None, "it is asked of plans with one"
        _, facts, interpreter = remote_from_proto(message, "$")
        return functools.partial(self._new, facts=facts, interpreter=interpreter)


class CallPlans:
    """Those of one session. Any thread may use them: each change is one step."""

    def __init__(self) -> None:
        # None: of such calls there is no plan.
        self._plans: dict[Hashable, CallPlan | None] = {}
        # Calls are planned when they come again.
        self._seen: dict[Hashable, None] = {}
        self.find = self._plans.get
        """Return the plan of calls with that key; None if there is none."""

    def learn(
        self, call: Call, request: execution_pb2.CallRequest, way: DirectWay[Any] | None, limit: int
    ) -> None:
        """Keep what a call that went that way, the general one, says of others like it.

        It takes requests of at most ``limit`` bytes. None: through the daemon.
        """
        if not isinstance(call, OperatorCall) or (key := call.plan_key) is None:
            return
        if self._plans.get(key, key) is None:
            return
        if way is None and held_ids((*call.args, *call.kwargs.values())):
            return  # the daemon may move them: the reply, read the general way, says where they are
        if key not in self._plans:
            # Calls that are all of other shapes make no plan each.
            if key not in self._seen:
                _put(self._seen, key, None)
                return
            self._seen.pop(key, None)
        plan = CallPlan.of(request, call.args, call.kwargs, call.shape, way, limit, call.new)
        _put(self._plans, key, plan)


def _put(table: dict[Hashable, T], key: Hashable, value: T) -> None:
    """Put a value in; the oldest goes first."""
    if len(table) >= MOST_PLANS:
        with contextlib.suppress(StopIteration, KeyError, RuntimeError):
            del table[next(iter(table))]
    table[key] = value
