"""Errors <-> ``google.rpc.Status``: how an OpdispatchError crosses a process boundary.

The status carries an ErrorInfo (``reason`` is the error's code in capitals, ``domain`` is
"opdispatch", ``metadata`` has its facts and its hint), a DebugInfo if there is a Python traceback,
and a RetryInfo if a queue is full or a circuit open. gRPC sends it in the call's trailers, so it is
kept below ``MAX_STATUS_BYTES``.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import grpc
from google.protobuf.message import DecodeError
from google.rpc import (
    code_pb2,
    error_details_pb2,
    status_pb2,
)

from opdispatch.errors import OpdispatchError
from opdispatch_wire.errors import (
    CircuitOpenError,
    DaemonUnavailableError,
    DeadlineExceededError,
    KernelError,
    MessageTooLargeError,
    QueueFullError,
    RefusedError,
)
from opdispatch_wire.kernel_errors import kernel_error
from opdispatch_wire.message_size import RAISE_LIMIT_HINT
from opdispatch_wire.printable import printable_line, printable_lines
from opdispatch_wire.resource_limits import find_resource_limit

DOMAIN = "opdispatch"
INTERNAL_REASON = "INTERNAL"
"""The reason of an unexpected exception, a bug of ours; no error class has this code."""

DETAILS_KEY = "grpc-status-details-bin"
"""The trailer in which gRPC sends a rich status."""

# Other gRPC peers refuse more than 8 KiB of trailers, which include the message a second time.
MAX_STATUS_BYTES = 6 * 1024
_MAX_MESSAGE_BYTES = 2048
_MAX_FACT_BYTES = 512
_MAX_FACTS_BYTES = 1280
_MAX_LINE_BYTES = 400

# What gRPC's header for the message does not percent-encode.
_PLAIN_CHARACTERS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

_NEVER_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution")

# Texts in gRPC's details of failed handshakes, what they mean, and what to do.
_HANDSHAKES = (
    (
        "certificate has expired",
        "its certificate has expired, or the one of its CA",
        "ask the daemon's operator to renew it with `opdispatch certs`",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate was not issued by the CA trusted here",
        "see connect(tls_ca=...) and OPDISPATCH_TLS_CA",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate is for another host",
        "use a name or an address from the certificate, or make one for this host with "
        "`opdispatch certs --host`",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "it does not speak TLS",
        "leave tls_ca and OPDISPATCH_TLS_CA out, or start the daemon with `serve --tls-cert`",
    ),
    (
        "Socket closed",
        "it closed the connection during the handshake",
        "it may require TLS, see connect(tls_ca=...) and OPDISPATCH_TLS_CA, or a client "
        "certificate, see connect(tls_cert=..., tls_key=...), or may have reached its limit of "
        "connections",
    ),
)

_C = grpc.StatusCode

# Has every code of OpdispatchError.by_code; a test checks that.
STATUS_OF_CODE: dict[str, grpc.StatusCode] = {
    "opdispatch": _C.UNKNOWN,
    "operator_not_found": _C.NOT_FOUND,
    "library_not_found": _C.NOT_FOUND,
    "interpreter_not_found": _C.NOT_FOUND,
    "duplicate_definition": _C.ALREADY_EXISTS,
    "argument": _C.INVALID_ARGUMENT,
    "scalar_range": _C.INVALID_ARGUMENT,
    "wire": _C.INVALID_ARGUMENT,
    "address": _C.INVALID_ARGUMENT,
    "unsafe_address": _C.FAILED_PRECONDITION,
    "registration": _C.INVALID_ARGUMENT,
    "schema": _C.INVALID_ARGUMENT,
    "schema_mismatch": _C.INVALID_ARGUMENT,
    "library": _C.INVALID_ARGUMENT,
    "kernel_type": _C.INVALID_ARGUMENT,
    "dispatch_key": _C.INVALID_ARGUMENT,
    "library_load": _C.INVALID_ARGUMENT,
    "no_kernel": _C.UNIMPLEMENTED,
    "unknown_mode": _C.UNIMPLEMENTED,
    "ambiguous_kernel": _C.FAILED_PRECONDITION,
    "autograd": _C.FAILED_PRECONDITION,
    "graph": _C.INVALID_ARGUMENT,
    "data_dependent_output": _C.FAILED_PRECONDITION,
    "transform": _C.FAILED_PRECONDITION,
    "kernel_raised": _C.UNKNOWN,
    "return": _C.INTERNAL,
    "op_check": _C.FAILED_PRECONDITION,
    "device": _C.FAILED_PRECONDITION,
    "device_memory": _C.RESOURCE_EXHAUSTED,
    "device_lost": _C.UNAVAILABLE,
    "kernel_timeout": _C.DEADLINE_EXCEEDED,
    "wait_timeout": _C.DEADLINE_EXCEEDED,
    "deadline_exceeded": _C.DEADLINE_EXCEEDED,
    "message_too_large": _C.RESOURCE_EXHAUSTED,
    "interpreter_died": _C.UNAVAILABLE,
    "daemon_unavailable": _C.UNAVAILABLE,
    "refused": _C.UNAVAILABLE,
    "journal": _C.FAILED_PRECONDITION,
    "unauthenticated": _C.UNAUTHENTICATED,
    "permission_denied": _C.PERMISSION_DENIED,
    "event_loop": _C.FAILED_PRECONDITION,
    "queue_full": _C.RESOURCE_EXHAUSTED,
    "circuit_open": _C.UNAVAILABLE,
    "remote_value_gone": _C.NOT_FOUND,
    "remote_limit": _C.RESOURCE_EXHAUSTED,
    "resource_limit": _C.RESOURCE_EXHAUSTED,
}


def find_status_code(error: BaseException) -> grpc.StatusCode:
    """Return the gRPC status code for ``error``; INTERNAL for an exception that is not ours."""
    if isinstance(error, asyncio.CancelledError):
        return _C.CANCELLED
    if type(error) is OpdispatchError:
        # Received as a status whose reason is unknown here: keep its code.
        known = _C.__members__.get(str(error.facts.get("status")), _C.OK)
        if known is not _C.OK:
            return known
    for cls in type(error).__mro__:
        if issubclass(cls, OpdispatchError) and cls.code in STATUS_OF_CODE:
            return STATUS_OF_CODE[cls.code]
    return _C.INTERNAL


def status_from_error(error: BaseException) -> status_pb2.Status:
    """Return the status of an error, at most ``MAX_STATUS_BYTES`` long when serialized.

    Of an exception that is not ours, only the type is sent: its message may be private. Exhausted
    resources become a ResourceLimitError.
    """
    error = find_resource_limit(error) or error
    status = status_pb2.Status(code=find_status_code(error).value[0])
    info = error_details_pb2.ErrorInfo(domain=DOMAIN)
    traceback = ""
    if isinstance(error, OpdispatchError):
        status.message = _cut_message(error.message)
        info.reason = error.code.upper()
        facts = {"hint": error.hint, **error.facts}
        traceback = protobuf_text(facts.pop("traceback", ""))
        _fill_metadata(info, facts)
    else:
        status.message = f"internal error ({type(error).__name__}); the log has the traceback"
        info.reason = INTERNAL_REASON
    status.details.add().Pack(info)
    if isinstance(error, QueueFullError | CircuitOpenError):
        delay = _milliseconds(info.metadata.get("retry_after", ""))
        if delay is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(delay)
            status.details.add().Pack(retry)
    if traceback:
        envelope = 64  # the type's name and the lengths of DebugInfo
        room = MAX_STATUS_BYTES - status.ByteSize() - envelope
        debug = error_details_pb2.DebugInfo(detail=cut_lines(traceback, room))
        status.details.add().Pack(debug)
    return status


def _milliseconds(seconds: str) -> int | None:
    """Return a delay in milliseconds; None unless it is a number from 0 to a day.

    The error may come from a library, so that the fact can be any text.
    """
    try:
        delay = float(seconds)
    except ValueError:
        return None
    return round(delay * 1000) if 0 <= delay <= 86_400 else None


def error_from_status(status: status_pb2.Status) -> OpdispatchError:
    """Rebuild an error with its class and facts.

    A status without a reason of ours becomes a plain OpdispatchError, and ``facts["status"]`` the
    name of its code. Message, hint and notes are made printable, because Python prints them when
    the error is not caught; facts are left as received.
    """
    info, debug = error_details_pb2.ErrorInfo(), error_details_pb2.DebugInfo()
    for detail in status.details:
        for message in (info, debug):
            if detail.Is(message.DESCRIPTOR):
                try:
                    detail.Unpack(message)
                except DecodeError:  # the rest of the status is still useful
                    message.Clear()
    ours = info.domain == DOMAIN
    cls = OpdispatchError.by_code.get(info.reason.lower() if ours else "")
    facts = dict(info.metadata)
    text = printable_lines(status.message)
    hint = printable_lines(facts.pop("hint", ""))
    if cls is KernelError:
        error: OpdispatchError = kernel_error(text, hint=hint, facts=facts)
    else:
        error = (cls or OpdispatchError)(text, hint=hint)
    if cls is None:
        facts["status"] = _name_of_code(status.code)
    if debug.detail:
        facts["traceback"] = debug.detail
        where = facts.get("interpreter", "")
        heading = f"In the interpreter{' ' * bool(where)}{printable_line(where)}:"
        error.add_note(f"{heading}\n{printable_lines(debug.detail)}")
    error.facts.update(facts)
    return error


def error_from_rpc(rpc_error: grpc.RpcError, *, address: str) -> OpdispatchError:
    """Return the error for a failed RPC: the one that the peer sent, or one about the connection.

    Accepts the exceptions of ``grpc`` and ``grpc.aio``.
    """
    code, details, trailers = _parts_of(rpc_error)
    for key, value in trailers:
        if key == DETAILS_KEY:
            try:
                return error_from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                break  # not a status; the code is enough
    match code:
        case _C.UNAVAILABLE:
            return _unavailable(details, address)
        case _C.DEADLINE_EXCEEDED:
            return late_answer_error(address)
        case _C.RESOURCE_EXHAUSTED:
            return MessageTooLargeError(
                f"a message to or from {address} is over the limit: {details}",
                hint=RAISE_LIMIT_HINT,
            )
        case _C.CANCELLED:
            # A stopping server ends requests like this whether it has begun to serve them or not.
            return lost_connection_error(address, details)
        case _C.UNIMPLEMENTED:
            return OpdispatchError(
                f"{address} does not know this request ({details}): "
                "it is an older daemon, or not an opdispatch daemon",
                status=code.name,
            )
    return OpdispatchError(f"{address} answered {code.name}: {details}", status=code.name)


def late_answer_error(address: str, operator: str = "") -> DeadlineExceededError:
    """Return the error for a request, or a call of ``operator``, that missed its deadline."""
    if not operator:
        return DeadlineExceededError(
            f"{address} did not answer before the deadline passed", started="unknown"
        )
    return DeadlineExceededError(
        f"the deadline passed before {address} answered the call of {operator}; it may or may not "
        "have run",
        operator=operator,
        started="unknown",
    )


def lost_connection_error(address: str, details: str) -> DaemonUnavailableError:
    """Return the error for a call that was in flight when the connection was lost."""
    return DaemonUnavailableError(
        f"the connection to {address} was lost before the reply; the call may or may not have run",
        address=address,
        started="unknown",
        daemon="lost",
        details=details,
    )


def stopping_error(what: str) -> RefusedError:
    """Return the error for a request to a stopping daemon; ``what`` says what became of it."""
    return RefusedError(f"the daemon is stopping; {what}", started="no", daemon="stopping")


def no_thread_left_error(what: str, error: RuntimeError) -> RefusedError:
    """Return the error for a call that never started, because no thread could be started for it."""
    return RefusedError(
        f"this process cannot start a thread {what}, which never started: {error}",
        hint="a limit of threads or memory is reached; raise it, or try again later",
        started="no",
    )


def end_with(
    context: grpc.aio.ServicerContext[Any, Any],
    status: status_pb2.Status,
    code: grpc.StatusCode,
) -> None:
    """Set the status that the call ends with when its method returns, whatever it returns.

    Not ``context.abort``: it raises an exception that the context keeps. Its traceback refers to
    the context and the request, a cycle that lives until the garbage collector runs.
    """
    context.set_code(code)
    context.set_details(status.message)
    context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))


def _parts_of(
    rpc_error: grpc.RpcError,
) -> tuple[grpc.StatusCode, str, list[tuple[str, bytes]]]:
    """Return code, details and binary trailers; UNKNOWN and no trailers for a bare RpcError."""
    if not isinstance(rpc_error, grpc.Call | grpc.aio.AioRpcError):
        return _C.UNKNOWN, str(rpc_error), []
    trailers = rpc_error.trailing_metadata() or ()
    return (
        rpc_error.code(),
        printable_lines(rpc_error.details() or "no details"),
        [(key, value) for key, value in trailers if isinstance(value, bytes)],
    )


def _unavailable(details: str, address: str) -> DaemonUnavailableError:
    # Only the text tells whether gRPC ever connected. If its wording changes, the error says that
    # the call may have run, which is the safe answer.
    if details.startswith(_NEVER_CONNECTED):
        for sign, why, hint in _HANDSHAKES:
            if sign in details:
                return DaemonUnavailableError(
                    f"cannot connect to {address}: {why}",
                    hint=hint,
                    address=address,
                    started="no",
                    details=details,
                )
        return DaemonUnavailableError(
            f"no daemon answers at {address}",
            hint="start one with `opdispatch serve`",
            address=address,
            started="no",
            daemon="away",
            details=details,
        )
    return lost_connection_error(address, details)


def cut_lines(text: str, limit: int) -> str:
    """Cut ``text`` to at most ``limit`` bytes, keeping its first and, above all, its last lines."""
    if len(text.encode()) <= limit:
        return text
    lines = [_cut(line, _MAX_LINE_BYTES) for line in text.splitlines()]
    sizes = [len(line.encode()) + 1 for line in lines]
    room = limit - len(f"... {len(lines)} lines cut ...\n")
    # The end of a traceback says what happened and where, so it gets three quarters.
    head, tail, used = 0, len(lines), 0
    while head < tail and used + sizes[head] <= room // 4:
        used += sizes[head]
        head += 1
    while tail > head and used + sizes[tail - 1] <= room:
        tail -= 1
        used += sizes[tail]
    kept = lines[:head] + lines[tail:]
    if head < tail:
        kept.insert(head, f"... {tail - head} lines cut ...")
    return "\n".join(kept)


def _cut(text: str, limit: int) -> str:
    """Cut ``text`` to at most ``limit`` bytes by leaving out its middle."""
    data = text.encode()
    if len(data) <= limit:
        return text
    half = max((limit - len(f" ... {len(data)} bytes cut ... ")) // 2, 0)
    head = data[:half].decode(errors="ignore")
    tail = data[len(data) - half :].decode(errors="ignore")
    cut = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head} ... {cut} bytes cut ... {tail}"


def _cut_message(text: str) -> str:
    """Cut a message to fit in gRPC's header for it, which is percent-encoded."""
    text = protobuf_text(text)
    limit = _MAX_MESSAGE_BYTES
    while len(quote(cut := _cut(text, limit), safe=_PLAIN_CHARACTERS)) > _MAX_MESSAGE_BYTES:
        limit = limit * 3 // 4
    return cut


def _fill_metadata(info: error_details_pb2.ErrorInfo, facts: dict[str, str]) -> None:
    """Add the facts in their order, leaving out those for which there is no room."""
    room = _MAX_FACTS_BYTES
    for name, fact in facts.items():
        text = _cut(protobuf_text(fact), _MAX_FACT_BYTES)
        size = len(name.encode()) + len(text.encode()) + 8
        if text and size <= room:
            info.metadata[name] = text
            room -= size


def protobuf_text(value: object) -> str:
    """Return ``value`` as text that protobuf accepts, with lone surrogates escaped."""
    return str(value).encode(errors="backslashreplace").decode()


def _name_of_code(number: int) -> str:
    known = number in code_pb2.Code.values()
    return code_pb2.Code.Name(number) if known else str(number)
