"""What a session asks of the daemon about remote tensors and programs. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opdispatch_client.operator_call import EncodedCall
from opdispatch_wire.calls import add_local_keys, call_request, result_of_reply, returns_of_reply
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import is_tensor
from opdispatch_wire.v1 import execution_pb2, remote_pb2
from opdispatch_wire.values import DecodeRemote, fill_value


def _transfer(*, keep: bool) -> bytes:
    """A program without steps: its input comes back, or stays."""
    program = remote_pb2.Program()
    output = program.outputs.add(keep=keep, host=not keep)
    output.what.input = 0
    data: bytes = program.SerializeToString()
    return data


_PUT, _FETCH = _transfer(keep=True), _transfer(keep=False)


def call(
    operator: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    keep: remote_pb2.Keep,
    make: DecodeRemote,
    *,
    retry: bool,
) -> EncodedCall:
    """One operator call whose results stay where they are. Raises WireError."""
    request = call_request(operator, args, kwargs)
    request.keep.CopyFrom(keep)
    if not retry:
        request.retry = False
    return EncodedCall(
        f"the call of {operator}",
        request,
        lambda reply: result_of_reply(reply, args, kwargs, remote=make),
    )


def put(array: Any, keep: remote_pb2.Keep, make: DecodeRemote) -> EncodedCall:
    """Puts an array into an interpreter: a list of one remote tensor. Raises WireError."""
    if not is_tensor(array):
        raise WireError(f"$ is no array, but {type(array).__name__}")
    return program(_PUT, "the array", [array], make, keep=keep)


def fetch(tensor: Any) -> EncodedCall:
    """The elements of a remote tensor: a list of one array. Raises RemoteValueGoneError."""
    return program(_FETCH, "the request for a remote tensor", [tensor], None)


def program(
    data: bytes,
    what: str,
    inputs: Sequence[Any],
    make: DecodeRemote | None,
    *,
    keep: remote_pb2.Keep | None = None,
    retry: bool = True,
) -> EncodedCall:
    """One program; its outputs, in order.

    Raises WireError, RemoteValueGoneError.
    """
    request = execution_pb2.CallRequest(program=data, keep=keep)
    for i, value in enumerate(inputs):
        fill_value(request.args.add(), value, at=f"$.args[{i}]")
    add_local_keys(request)
    if not retry:
        request.retry = False
    return EncodedCall(
        what, request, lambda reply: returns_of_reply(reply, inputs, {}, remote=make)
    )
