"""Calls, independent of how they are sent."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from opdispatch.local_state.local_dispatch_key_set import local_dispatch_key_set_is_default
from opdispatch_client import listings
from opdispatch_client.call_shape import call_shape
from opdispatch_client.planned_keep import NewValue
from opdispatch_client.remote_value import HeldId, held_ids, note_interpreter
from opdispatch_wire.caller_tensors import OnTransfer
from opdispatch_wire.calls import call_request, result_of_reply
from opdispatch_wire.profiles import CallSpan
from opdispatch_wire.tensors import CallerTensorMemory
from opdispatch_wire.v1 import execution_pb2, remote_pb2
from opdispatch_wire.values import DecodeRemote


class Call(Protocol):
    """A call of an operator, and how its reply is read."""

    operator: str
    on_progress: OnTransfer | None
    retry: bool
    """Whether it may be retried after it may have run, if that is harmless."""
    deadline: float | None
    """Deadline by ``time.monotonic``; None if the session's timeout applies."""

    @property
    def what(self) -> str:
        """The call in words, for error messages."""

    @property
    def shape(self) -> Hashable | None:
        """See ``call_shape``; None if the call has to go through the daemon."""

    def encode(self, memory: CallerTensorMemory | None = None) -> execution_pb2.CallRequest:
        """Return the request, with large tensors in ``memory``.

        Raises WireError for values that cannot be sent.
        """

    def read(self, reply: execution_pb2.CallReply, memory: CallerTensorMemory | None = None) -> Any:
        """Return the call's result; ``memory`` is that of the request. Raises the reply's error."""

    def close(self) -> None:
        """Close the call, read or not. Idempotent."""


class OperatorCall:
    """A call of one operator: its encoding, and how its reply is read. No I/O.

    ``retry`` says whether it may run again when its interpreter dies. With ``trace``, the result is
    a pair: the result itself, and the kernels visited. With ``keep``, tensors among the results
    stay in the interpreter, and ``make`` makes their proxies. ``on_progress`` is called as large
    tensors are transferred, where they are chunked. ``deadline`` is when its caller stops waiting,
    by ``time.monotonic``; None: the session's timeout applies.
    """

    __slots__ = (
        "_held",
        "_keep",
        "_make",
        "_span",
        "_trace",
        "args",
        "deadline",
        "kwargs",
        "new",
        "on_progress",
        "operator",
        "plan_key",
        "retry",
    )

    def __init__(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool = True,
        trace: bool = False,
        keep: remote_pb2.Keep | None = None,
        make: DecodeRemote | None = None,
        on_progress: OnTransfer | None = None,
        deadline: float | None = None,
        plan_key: Hashable | None = None,
        new: NewValue | None = None,
    ) -> None:
        self.operator = operator
        self.deadline = deadline
        self.args = args
        self.kwargs = kwargs
        self.retry = retry
        self._trace = trace
        self._keep = keep
        self._make = make
        self._span: CallSpan | None = None
        self._held: list[HeldId] = []
        self.on_progress = on_progress
        self.plan_key = plan_key
        """See ``call_plan``; None: no plan is made from it."""
        self.new = new
        """Like ``make``, for calls that follow the plan."""

    @property
    def what(self) -> str:
        """The call in words, for error messages."""
        return f"the call of {self.operator}"

    @property
    def shape(self) -> Hashable | None:
        """See ``call_shape``; None if the call has to go through the daemon."""
        if self._trace or not local_dispatch_key_set_is_default():
            return None
        keep = self._keep
        if keep is None:
            return call_shape(self.operator, self.args, self.kwargs)
        # A call that is not retried has no shape: if an interpreter cannot keep the results of a
        # direct call, the call runs again through the daemon.
        shape = call_shape(self.operator, self.args, self.kwargs) if self.retry else None
        return None if shape is None else (shape, keep.session)

    def encode(self, memory: CallerTensorMemory | None = None) -> execution_pb2.CallRequest:
        """Return the request, with large tensors in ``memory``.

        Raises WireError for values that cannot be sent.
        """
        if self._span is None:  # a call that is sent again over another lane has one span
            self._span = CallSpan.begin(self.operator)
        request = call_request(
            self.operator, self.args, self.kwargs, trace=self._trace, memory=memory
        )
        self.hold()  # not earlier: infinitely nested arguments have been refused by now
        if not self.retry:
            request.retry = False
        if self._keep is not None:
            request.keep.CopyFrom(self._keep)
        if self._span is not None:
            self._span.ask(request)
        return request

    def hold(self) -> None:
        """Keep the remote tensors among the arguments from being released until ``close``."""
        self._held = held_ids((*self.args, *self.kwargs.values()))

    def read(self, reply: execution_pb2.CallReply, memory: CallerTensorMemory | None = None) -> Any:
        """Return the call's result; ``memory`` is that of the request. Raises the reply's error."""
        if self._span is not None:
            self._span.end(reply)
        result = result_of_reply(reply, self.args, self.kwargs, memory, self._make)
        if reply.interpreter:
            note_interpreter((*self.args, *self.kwargs.values()), reply.interpreter)
        if not self._trace:
            return result
        return result, [listings.read_fields(listings.TraceLine, line) for line in reply.trace]

    def close(self) -> None:
        """Close the call, read or not. Idempotent."""
        self._held.clear()
        if self._span is not None:
            self._span.end(None)
