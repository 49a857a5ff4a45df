"""Fetches values from other interpreters, without the daemon."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, NamedTuple

import grpc

from opdispatch.arrays import DeviceMemory, backend_of_device
from opdispatch.errors import DeviceError, DeviceLostError, DeviceMemoryError, OpdispatchError
from opdispatch.tensors.tensor import Tensor
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.worker.values.device_exports import find_device_id
from opdispatch_server.worker.values.device_moves import put_on_host
from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.channel import channel_options
from opdispatch_wire.chunks import BESIDE_BYTES
from opdispatch_wire.credentials import NO_CREDENTIALS, shown_ticket
from opdispatch_wire.errors import RemoteValueGoneError, WireError, copy_of_error
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.blocking_stream import BlockingStream
from opdispatch_wire.lanes.lane_messages import LaneClosedError, patience_until
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.remote_values import facts_from_proto
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, remote_pb2, values_pb2
from opdispatch_wire.values import value_from_proto

LOG = logging.getLogger("opdispatch.interpreter")


# Seconds that an owner may take to acknowledge that a reader has failed.
_LAST_WORDS = 5.0


def transfer_program() -> bytes:
    """Return a program without steps that returns its one input."""
    program = remote_pb2.Program()
    program.outputs.add().what.input = 0
    data: bytes = program.SerializeToString()
    return data


TRANSFER = transfer_program()


class Fetched(NamedTuple):
    """A value fetched from another interpreter."""

    value: Any
    has_history: bool
    """Whether recorded calls in that interpreter made it."""


class _Place(NamedTuple):
    """Where another interpreter accepts calls: the path of its lane, or else an address."""

    lane: str
    address: str
    ticket: str = ""
    tls: bool = False


class _Way(NamedTuple):
    """A connection to another interpreter."""

    calls: BlockingLane | BlockingStream
    channel: grpc.Channel | None = None

    def close(self) -> None:
        self.calls.close()
        if self.channel is not None:
            self.channel.close()


class _Opening:
    """A connection that one thread is opening.

    ``error`` is for the threads that wait until ``is_done``; it is not set if the connection was
    opened, or was given up only because the opening thread ran out of time.
    """

    def __init__(self) -> None:
        self.is_done = threading.Event()
        self.error: Exception | None = None


class PeerValues:
    """Connections to other interpreters, opened on demand. Any thread may use it.

    ``_lock`` protects every field. ``_ways`` has at most one connection for each place, which
    threads share; ``_opening`` has what others wait for while one thread opens a connection.
    ``_lock`` is not held during that, so that a silent place does not delay threads that need
    another one. After ``_is_closed``, no connection is put into ``_ways``.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.credentials = NO_CREDENTIALS
        """Credentials for interpreters that use TLS."""
        self._lock = threading.Lock()
        self._ways: dict[_Place, _Way] = {}
        self._opening: dict[_Place, _Opening] = {}
        self._is_closed = False

    def fetch_for(
        self, device: str, message: values_pb2.RemoteTensor, timeout: float | None, at: str
    ) -> Any:
        """Return a copy that is to be moved to ``device``.

        On the device of the value, if both are of one type and this process can read its memory;
        else on the host. Raises the errors of ``fetch``.
        """
        is_alike = device.partition(":")[0] == message.device.partition(":")[0]
        if is_alike and find_device_id(message.device):
            return self.fetch(message, timeout, at).value
        reply, tensors = self._ask(message, b"", timeout, at)
        is_plain = put_on_host(reply.returns[0])
        value = value_from_proto(reply.returns[0], at=at, writable=True, memory=tensors)
        return value if is_plain or isinstance(value, Tensor) else Tensor(value)

    def fetch(self, message: values_pb2.RemoteTensor, timeout: float | None, at: str) -> Fetched:
        """Return the value, as its interpreter has it.

        Raises that interpreter's error, RemoteValueGoneError if it cannot be reached, WireError,
        DeviceMemoryError and DeviceLostError. See Note [Reading another process's device memory].
        """
        device_id = find_device_id(message.device) if message.source.lane else b""
        reply, tensors = self._ask(message, device_id, timeout, at)
        tensor = reply.returns[0].tensor
        if device_id and tensor.HasField("device_memory"):
            try:
                value = self._copy(message, tensor, timeout, at)
            except (DeviceMemoryError, DeviceLostError):
                raise
            except (DeviceError, RemoteValueGoneError) as error:
                LOG.warning(
                    "fetching a value through host memory: %s",
                    error,
                    extra=fields(Event.VALUE_BY_HOST),
                )
                reply, tensors = self._ask(message, b"", timeout, at)
            else:
                return Fetched(value, reply.has_history)
        value = value_from_proto(reply.returns[0], at=at, writable=True, memory=tensors)
        return Fetched(value, reply.has_history)

    def _copy(
        self,
        message: values_pb2.RemoteTensor,
        tensor: values_pb2.Tensor,
        timeout: float | None,
        at: str,
    ) -> Any:
        """Return a copy of what the owner shares, having checked that it was kept meanwhile.

        Raises the errors of ``fetch``.
        """
        lease = tensor.device_memory.lease
        try:
            value = _copy_of(tensor, message.device, at)
        except BaseException:
            # No other thread notifies the owner, which would keep the value for a slow reader.
            patience = _LAST_WORDS if timeout is None else min(timeout, _LAST_WORDS)
            with contextlib.suppress(OpdispatchError):
                self._end_lease(message, lease, patience, at)
            raise
        self._end_lease(message, lease, timeout, at)
        return value

    def _ask(
        self,
        message: values_pb2.RemoteTensor,
        device_id: bytes,
        timeout: float | None,
        at: str,
    ) -> tuple[execution_pb2.CallReply, CallerTensors]:
        """Request the value, or its address on the device of that id."""
        request = execution_pb2.CallRequest(
            operator="a transfer of a value",
            program=TRANSFER,
            retry=False,
            chunks_reply=True,
            device_memory=device_id,
        )
        remote = request.args.add().remote
        remote.id, remote.session = message.id, message.session
        remote.place, remote.next_place = message.source.place, message.next_place
        tensors = CallerTensors(BESIDE_BYTES)
        return self._call(message, request, tensors, timeout, at), tensors

    def _end_lease(
        self, message: values_pb2.RemoteTensor, lease: bytes, timeout: float | None, at: str
    ) -> None:
        request = execution_pb2.CallRequest(
            operator="the end of a transfer", adopt=True, device_lease=lease, retry=False
        )
        self._call(message, request, CallerTensors(BESIDE_BYTES), timeout, at)

    def _call(
        self,
        message: values_pb2.RemoteTensor,
        request: execution_pb2.CallRequest,
        tensors: CallerTensors,
        timeout: float | None,
        at: str,
    ) -> execution_pb2.CallReply:
        # It needs no kernel thread, and must not wait for the threads of calls that wait for
        # values.
        request.path.depth = 1
        source = message.source
        place = _Place(source.lane, "")
        if not source.lane:
            place = _Place("", source.address, source.ticket, source.tls)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            calls = self._way_to(place, deadline).calls
            left = _left_until(deadline)
            reply = calls.call(request, left, "the request for a value", tensors=tensors)
        except (OSError, LaneClosedError, TimeoutError) as error:
            why = str(error) or "it does not answer"
            raise RemoteValueGoneError(
                f"{at}: cannot fetch the remote tensor {message.id.hex()} from interpreter "
                f"{message.interpreter}: {why}",
                value=message.id.hex(),
                interpreter=message.interpreter,
                reason=why,
            ) from None
        if reply.HasField("error"):
            raise error_from_status(reply.error)
        return reply

    def close(self) -> None:
        """Close every connection; no others are made. Idempotent."""
        with self._lock:
            self._is_closed = True
            ways, self._ways = self._ways, {}
            opening = list(self._opening.values())
        for way in ways.values():
            way.close()
        for each in opening:
            each.is_done.set()

    def _way_to(self, place: _Place, deadline: float | None) -> _Way:
        """Return the connection to a place. Raises TimeoutError, and the errors of ``_open``."""
        while True:
            with self._lock:
                if self._is_closed:
                    raise LaneClosedError("this interpreter is stopping", was_sent=False)
                way = self._ways.get(place)
                if way is not None and not way.calls.is_closed:
                    return way
                opening = self._opening.get(place)
                if opening is None:
                    opening = self._opening[place] = _Opening()
                    break
            if not opening.is_done.wait(_left_until(deadline)):
                raise TimeoutError
            if (error := opening.error) is not None:
                raise copy_of_error(error)
        try:
            return self._add(place, deadline)
        except Exception as error:
            if _left_until(deadline) != 0:
                opening.error = error
            raise
        finally:
            with self._lock:
                del self._opening[place]
            opening.is_done.set()
            del opening  # its error refers to this frame: a cycle

    def _add(self, place: _Place, deadline: float | None) -> _Way:
        """Add a new connection, which replaces one that has ended."""
        self._let_go_of_what_has_ended()
        way = self._open(place, patience_until(deadline))
        with self._lock:
            if not self._is_closed:
                self._ways[place] = way
                return way
        way.close()
        raise LaneClosedError("this interpreter is stopping", was_sent=False)

    def _open(self, place: _Place, patience: float) -> _Way:
        """Open a connection.

        Raises OSError, LaneClosedError, and the error of a peer that refuses.
        """
        if place.lane:
            GUARD.own_peer(f"unix:{place.lane}")
            return _Way(
                BlockingLane.connect(
                    place.lane,
                    self._limit,
                    call_limit=MAX_MESSAGE_BYTES_HIGHEST,
                    patience=patience,
                )
            )
        GUARD.own_peer(place.address)
        options = channel_options(self._limit, address=place.address)
        credentials = self.credentials if place.tls else NO_CREDENTIALS
        channel = credentials.channel(place.address, options)
        try:
            authorization = shown_ticket(place.ticket)
            return _Way(BlockingStream.open(channel, self._limit, patience, authorization), channel)
        except BaseException:
            channel.close()
            raise

    def _let_go_of_what_has_ended(self) -> None:
        """Close the connections to interpreters that are gone."""
        with self._lock:
            ended = [place for place, way in self._ways.items() if way.calls.is_closed]
            ways = [self._ways.pop(place) for place in ended]
        for way in ways:
            way.close()


def _left_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _copy_of(tensor: values_pb2.Tensor, device: str, at: str) -> Any:
    """Return a copy, on that device, of what its owner shares. Raises WireError and DeviceError."""
    facts, there = facts_from_proto(tensor, at=at), tensor.device_memory
    if facts.device != device or facts.nbytes != there.length:
        raise WireError(
            f"{at}: the owner shares {there.length} bytes on {facts.device}; expected "
            f"{facts.nbytes} on {device}"
        )
    memory = DeviceMemory(there.device_id, there.handle, there.offset, there.length)
    backend = backend_of_device(device)
    return facts.value_of(backend.read_shared(memory, facts.shape, facts.dtype, device))
