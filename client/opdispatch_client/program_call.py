"""Calls of programs, and transfers of values, which are sent as programs without steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.boxing.named_results import make_results
from opdispatch_client.remote_value import note_interpreter
from opdispatch_wire.caller_tensors import OnTransfer
from opdispatch_wire.calls import returns_of_reply
from opdispatch_wire.errors import WireError
from opdispatch_wire.modes import add_modes
from opdispatch_wire.profiles import CallSpan
from opdispatch_wire.tensors import CallerTensorMemory, is_tensor
from opdispatch_wire.v1 import execution_pb2, remote_pb2
from opdispatch_wire.values import DecodeRemote, fill_value


class ProgramCall:
    """One program, its encoding, and how its outputs are read. No I/O. See ``Call``.

    With ``keep``, outputs may stay in the interpreter, and ``make`` creates their proxies. Remote
    tensors among the inputs are moved to the interpreter that runs it, unless ``keep`` names a
    device.
    """

    __slots__ = ("_data", "_inputs", "_keep", "_make", "_span", "deadline", "retry", "what")

    operator = ""
    shape = None
    on_progress: OnTransfer | None = None

    def __init__(
        self,
        data: bytes,
        what: str,
        inputs: Sequence[Any],
        make: DecodeRemote | None,
        *,
        keep: remote_pb2.Keep | None = None,
        retry: bool = True,
        deadline: float | None = None,
    ) -> None:
        self._data = data
        self.deadline = deadline
        self.what = what
        self._inputs = inputs
        self._make = make
        self._keep = keep
        self.retry = retry
        self._span: CallSpan | None = None

    def encode(self, memory: CallerTensorMemory | None = None) -> execution_pb2.CallRequest:
        """Return the request, with large inputs in ``memory``.

        Raises WireError, RemoteValueGoneError.
        """
        if self._span is None:  # a call that is sent again over another lane has one span
            self._span = CallSpan.begin(self.what)
        request = execution_pb2.CallRequest(program=self._data, keep=self._keep)
        for i, value in enumerate(self._inputs):
            fill_value(request.args.add(), value, at=f"$.args[{i}]", memory=memory)
        add_modes(request)
        if not self.retry:
            request.retry = False
        if self._span is not None:
            self._span.ask(request)
        return request

    def read(
        self, reply: execution_pb2.CallReply, memory: CallerTensorMemory | None = None
    ) -> list[Any]:
        """Return the outputs; ``memory`` is that of the request. Raises the reply's error."""
        if self._span is not None:
            self._span.end(reply)
        returns = returns_of_reply(reply, self._inputs, {}, memory, self._make)
        if reply.interpreter and not (self._keep is not None and self._keep.device):
            note_interpreter(self._inputs, reply.interpreter)
        for each in reply.result_names:
            place = each.output
            values = returns[place] if place < len(returns) else None
            if isinstance(values, list) and len(values) == len(each.names):
                returns[place] = make_results(tuple(each.names), values)
        return returns

    def close(self) -> None:
        """Close the call, read or not. Idempotent."""
        if self._span is not None:
            self._span.end(None)


def put(
    array: Any, keep: remote_pb2.Keep, make: DecodeRemote, deadline: float | None = None
) -> ProgramCall:
    """Return the call that puts an array into an interpreter: a list of one remote tensor.

    Raises WireError.
    """
    if not is_tensor(array):
        raise WireError(f"$ is not an array, but {type(array).__name__}")
    return ProgramCall(_PUT, "the array", [array], make, keep=keep, deadline=deadline)


def move(
    tensor: Any,
    keep: remote_pb2.Keep,
    make: DecodeRemote,
    *,
    retry: bool = True,
    deadline: float | None = None,
) -> ProgramCall:
    """Return the call that moves a remote tensor to ``keep.device``: a list of one.

    Raises RemoteValueGoneError.
    """
    what = "the move of a remote tensor"
    return ProgramCall(_PUT, what, [tensor], make, keep=keep, retry=retry, deadline=deadline)


def fetch(tensor: Any, deadline: float | None = None) -> ProgramCall:
    """Return the call that fetches the elements of a remote tensor: a list of one array.

    Raises RemoteValueGoneError.
    """
    what = "the request for a remote tensor"
    return ProgramCall(_FETCH, what, [tensor], None, deadline=deadline)


def _transfer(*, keep: bool) -> bytes:
    """Return a program without steps: its input is returned, or stays."""
    program = remote_pb2.Program()
    output = program.outputs.add(keep=keep, host=not keep)
    output.what.input = 0
    data: bytes = program.SerializeToString()
    return data


_PUT, _FETCH = _transfer(keep=True), _transfer(keep=False)
