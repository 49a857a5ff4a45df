"""Calls before it is known how they travel."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from opdispatch.local_dispatch_key_set import local_dispatch_key_set_is_default
from opdispatch_client import listings
from opdispatch_client.call_shape import call_shape
from opdispatch_wire.caller_tensors import OnTransfer
from opdispatch_wire.calls import call_request, result_of_reply
from opdispatch_wire.tensors import CallerTensorMemory
from opdispatch_wire.v1 import execution_pb2


class Call(Protocol):
    """What is called, and what becomes of the reply."""

    operator: str

    @property
    def what(self) -> str:
        """The call in words, for error messages."""

    @property
    def shape(self) -> Hashable | None:
        """See ``call_shape``; None if the call has to go through the daemon."""

    def encode(self, memory: CallerTensorMemory | None = None) -> execution_pb2.CallRequest:
        """The request, large tensors in ``memory``. Raises WireError for what cannot be sent."""

    def read(self, reply: execution_pb2.CallReply, memory: CallerTensorMemory | None = None) -> Any:
        """What the caller gets; ``memory`` is that of the request. Raises the reply's error."""


class EncodedCall:
    """A call that has a request already, which goes through the daemon."""

    __slots__ = ("_read", "_request", "operator", "what")

    shape = None

    def __init__(
        self,
        what: str,
        request: execution_pb2.CallRequest,
        read: Callable[[execution_pb2.CallReply], Any],
    ) -> None:
        self.operator = request.operator
        self.what = what
        self._request = request
        self._read = read

    def encode(self, memory: CallerTensorMemory | None = None) -> execution_pb2.CallRequest:
        """The request."""
        return self._request

    def read(self, reply: execution_pb2.CallReply, memory: CallerTensorMemory | None = None) -> Any:
        """What the caller gets. Raises the reply's error."""
        return self._read(reply)


class OperatorCall:
    """The call, how it is encoded, and how its reply is read. No I/O.

    ``retry`` is whether it may run again when its interpreter dies. With ``trace``, the result
    is a pair: the result itself, and the kernels visited. ``on_progress`` is told how far its
    large tensors have got, where they go in chunks.
    """

    __slots__ = ("_args", "_kwargs", "_retry", "_trace", "on_progress", "operator")

    def __init__(
        self,
        operator: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        retry: bool = True,
        trace: bool = False,
        on_progress: OnTransfer | None = None,
    ) -> None:
        self.operator = operator
        self._args = args
        self._kwargs = kwargs
        self._retry = retry
        self._trace = trace
        self.on_progress = on_progress

    @property
    def what(self) -> str:
        """The call in words, for error messages."""
        return f"the call of {self.operator}"

    @property
    def shape(self) -> Hashable | None:
        """See ``call_shape``; None if the call has to go through the daemon."""
        if self._trace or not local_dispatch_key_set_is_default():
            return None
        return call_shape(self.operator, self._args, self._kwargs)

    def encode(self, memory: CallerTensorMemory | None = None) -> execution_pb2.CallRequest:
        """The request, large tensors in ``memory``. Raises WireError for what cannot be sent."""
        request = call_request(
            self.operator, self._args, self._kwargs, trace=self._trace, memory=memory
        )
        if not self._retry:
            request.retry = False
        return request

    def read(self, reply: execution_pb2.CallReply, memory: CallerTensorMemory | None = None) -> Any:
        """What the caller gets; ``memory`` is that of the request. Raises the reply's error."""
        result = result_of_reply(reply, self._args, self._kwargs, memory)
        if not self._trace:
            return result
        return result, [listings.trace_line_from_proto(line) for line in reply.trace]
