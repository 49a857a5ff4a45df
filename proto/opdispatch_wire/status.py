"""Errors <-> ``google.rpc.Status``: how an error of ours crosses a process boundary.

The status carries an ErrorInfo (``reason`` is the error's code in capitals, ``domain`` is
"opdispatch", ``metadata`` its facts and its hint); where there is one, a DebugInfo with the
Python traceback; and for a queue that is full, a RetryInfo. gRPC sends it in the call's trailers,
so it is kept below ``MAX_STATUS_BYTES``.
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
from opdispatch_wire.channel import RAISE_LIMIT_HINT
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
from opdispatch_wire.printable import printable_line, printable_lines
from opdispatch_wire.resource_limits import find_resource_limit

DOMAIN = "opdispatch"
INTERNAL_REASON = "INTERNAL"
"""The reason of an error that is a bug of ours; no class of ours has it."""

DETAILS_KEY = "grpc-status-details-bin"
"""The trailer that gRPC keeps a rich status in."""

# Peers that are not ours refuse trailers beyond 8 KiB: these and the message, which gRPC
# sends a second time.
MAX_STATUS_BYTES = 6 * 1024
_MAX_MESSAGE_BYTES = 2048
_MAX_FACT_BYTES = 512
_MAX_FACTS_BYTES = 1280
_MAX_LINE_BYTES = 400

# What gRPC's header for the message does not percent-encode.
_PLAIN_CHARACTERS = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

_NEVER_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution")

# What gRPC says of handshakes that fail, what that means, and what to do.
_HANDSHAKES = (
    (
        "certificate has expired",
        "its certificate has expired, or the one of its CA",
        "have who runs the daemon renew it: `opdispatch certs`",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "its certificate is not of the CA that is trusted here",
        "see connect(tls_ca=...) and OPDISPATCH_TLS_CA",
    ),
    (
        "Hostname Verification Check failed",
        "its certificate is for another host",
        "use a name or an address that is in it, or have one made with this one: "
        "`opdispatch certs --host`",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "it does not speak TLS",
        "leave tls_ca and OPDISPATCH_TLS_CA out, or start it with `serve --tls-cert`",
    ),
    (
        "Socket closed",
        "it hangs up during the handshake",
        "it may want TLS, see connect(tls_ca=...) and OPDISPATCH_TLS_CA, or a certificate of its "
        "client CA, see connect(tls_cert=..., tls_key=...), or all its connections may be taken",
    ),
)

_C = grpc.StatusCode

# Total over OpdispatchError.by_code: a test fails when a class is forgotten.
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
    """Return the gRPC status code for ``error``."""
    if isinstance(error, asyncio.CancelledError):
        return _C.CANCELLED
    if type(error) is OpdispatchError:
        # One that was a status before, whose reason is not known here, keeps its code.
        known = _C.__members__.get(str(error.facts.get("status")), _C.OK)
        if known is not _C.OK:
            return known
    for cls in type(error).__mro__:
        if issubclass(cls, OpdispatchError) and cls.code in STATUS_OF_CODE:
            return STATUS_OF_CODE[cls.code]
    return _C.INTERNAL


def status_from_error(error: BaseException) -> status_pb2.Status:
    """Return the status of an error, at most ``MAX_STATUS_BYTES`` long when serialized.

    Of an error that is not ours, only the type is sent: the rest may be private. What the
    system refuses for want of a resource becomes a ResourceLimitError.
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
    """Return a delay in milliseconds, None unless it is of up to a day.

    A library may have made the error.
    """
    try:
        delay = float(seconds)
    except ValueError:
        return None
    return round(delay * 1000) if 0 <= delay <= 86_400 else None


def error_from_status(status: status_pb2.Status) -> OpdispatchError:
    """Rebuild the error, of the same class and with the same facts.

    A status without a reason of ours gives a plain OpdispatchError. ``facts["status"]`` then
    has the name of its code. What Python prints of the error when it is not caught, its message
    and its notes, is printable; its facts are as they came.
    """
    info, debug = error_details_pb2.ErrorInfo(), error_details_pb2.DebugInfo()
    for detail in status.details:
        for message in (info, debug):
            if detail.Is(message.DESCRIPTOR):
                try:
                    detail.Unpack(message)
                except DecodeError:  # the rest of the status is still worth having
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
    """Return the error behind a failed call to ``address``: the peer's own, or one about the peer.

    Takes what ``grpc`` and ``grpc.aio`` raise.
    """
    code, details, trailers = _parts_of(rpc_error)
    for key, value in trailers:
        if key == DETAILS_KEY:
            try:
                return error_from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                break  # another library's; the code says enough
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
            # A server that stops ends so what it has not begun to serve, and what it has.
            return lost_connection_error(address, details)
        case _C.UNIMPLEMENTED:
            return OpdispatchError(
                f"{address} does not know this request ({details}): "
                "its daemon is older, or it is no daemon of opdispatch",
                status=code.name,
            )
    return OpdispatchError(f"{address} answered {code.name}: {details}", status=code.name)


def late_answer_error(address: str, operator: str = "") -> DeadlineExceededError:
    """Return the error of a request, or a call of ``operator``, not answered in time."""
    if not operator:
        return DeadlineExceededError(
            f"{address} did not answer before the deadline passed", started="unknown"
        )
    return DeadlineExceededError(
        f"the deadline passed before the call of {operator} was answered by {address}; it may or "
        "may not have run",
        operator=operator,
        started="unknown",
    )


def lost_connection_error(address: str, details: str) -> DaemonUnavailableError:
    """Return the error of a call that was under way when the connection ended."""
    return DaemonUnavailableError(
        f"the connection to {address} was lost before the reply; the call may or may not have run",
        address=address,
        started="unknown",
        daemon="lost",
        details=details,
    )


def stopping_error(what: str) -> RefusedError:
    """Return the error of a request to a daemon that is stopping; ``what`` it means for that."""
    return RefusedError(f"the daemon is stopping; {what}", started="no", daemon="stopping")


def no_thread_left_error(what: str, error: RuntimeError) -> RefusedError:
    """Return the error of a call that never started for want of a thread that ``what`` needs."""
    return RefusedError(
        f"this process has no thread {what}, which never started: {error}",
        hint="a limit of threads or memory is reached; try again in a moment, or raise it",
        started="no",
    )


def end_with(
    context: grpc.aio.ServicerContext[Any, Any],
    status: status_pb2.Status,
    code: grpc.StatusCode,
) -> None:
    """End the call with that status as soon as its method returns, whatever it returns.

    ``context.abort`` would do so by an exception that the context keeps: its traceback keeps the
    context, the request and all else of the call until the garbage collector comes.
    """
    context.set_code(code)
    context.set_details(status.message)
    context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))


def _parts_of(
    rpc_error: grpc.RpcError,
) -> tuple[grpc.StatusCode, str, list[tuple[str, bytes]]]:
    """Return code, details and binary trailers, of which a bare RpcError has none."""
    if not isinstance(rpc_error, grpc.Call | grpc.aio.AioRpcError):
        return _C.UNKNOWN, str(rpc_error), []
    trailers = rpc_error.trailing_metadata() or ()
    return (
        rpc_error.code(),
        printable_lines(rpc_error.details() or "no details"),
        [(key, value) for key, value in trailers if isinstance(value, bytes)],
    )


def _unavailable(details: str, address: str) -> DaemonUnavailableError:
    # gRPC tells these two apart only in its text. If that should change, we say that the call
    # may have run, which is the careful answer.
    if details.startswith(_NEVER_CONNECTED):
        for sign, why, hint in _HANDSHAKES:
            if sign in details:
                return DaemonUnavailableError(
                    f"no session with {address} can be begun: {why}",
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
    """Cut ``text`` to at most ``limit`` bytes: the first and, mostly, the last of its lines."""
    if len(text.encode()) <= limit:
        return text
    lines = [_cut(line, _MAX_LINE_BYTES) for line in text.splitlines()]
    sizes = [len(line.encode()) + 1 for line in lines]
    room = limit - len(f"... {len(lines)} lines cut ...\n")
    # The end of a traceback says what happened and where: it gets three quarters.
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
    """Cut ``text`` to at most ``limit`` bytes, without its middle."""
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
    """Take as many facts, in their order, as there is room for."""
    room = _MAX_FACTS_BYTES
    for name, fact in facts.items():
        text = _cut(protobuf_text(fact), _MAX_FACT_BYTES)
        size = len(name.encode()) + len(text.encode()) + 8
        if text and size <= room:
            info.metadata[name] = text
            room -= size


def protobuf_text(value: object) -> str:
    """Return ``value`` as text that protobuf takes: without halves of surrogate pairs."""
    return str(value).encode(errors="backslashreplace").decode()


def _name_of_code(number: int) -> str:
    known = number in code_pb2.Code.values()
    return code_pb2.Code.Name(number) if known else str(number)
