"""Errors of the service, besides the dispatcher's own.

OpdispatchError                      (opdispatch.errors)
├── LibraryNotFoundError             no library of that name is loaded
├── LibraryLoadError                 a library did not load; carries the traceback
├── KernelError                      a kernel raised; carries type, message and traceback
├── InterpreterNotFoundError         no interpreter of that name, or none at all
├── KernelTimeoutError               a kernel ran longer than the daemon allows
├── InterpreterDiedError             the process that was running the call is gone
├── DaemonUnavailableError           no daemon listens at that address
├── MessageTooLargeError             a message is over the limit
├── DeadlineExceededError            the caller's time is up
├── RefusedError                     the daemon is draining, or a process is busy; try again
│   ├── QueueFullError               the queue is full; says when to try again
│   └── CircuitOpenError             the operator brought interpreters down; says when, too
├── RemoteValueGoneError             a remote tensor is gone, or never existed
├── RemoteLimitError                 a session keeps as many remote values as it may keep
├── ResourceLimitError               a process has no descriptors, memory or threads left
├── UnauthenticatedError             the daemon does not know the client
├── PermissionDeniedError            the client lacks the role that this needs
├── EventLoopError                   an asyncio session is used in another event loop
├── JournalError                     the daemon's journal cannot be used or written to
└── WireError                        a value or message is malformed
"""

from __future__ import annotations

import copy
from typing import TypeVar

from opdispatch.errors import OpdispatchError

ErrorT = TypeVar("ErrorT", bound=BaseException)


class LibraryNotFoundError(OpdispatchError, LookupError):
    """No library of that name (or version) is loaded."""

    code = "library_not_found"


class LibraryLoadError(OpdispatchError, ImportError):
    """A library did not load, and left nothing behind.

    ``facts["traceback"]`` has the Python traceback of the interpreter that tried, and
    ``facts["line"]`` the offending line as ``FILE:LINE`` if known. If its environment could not be
    built, ``facts["output"]`` has the last lines of the installer.
    """

    code = "library_load"


class KernelError(OpdispatchError, RuntimeError):
    """A kernel raised in its interpreter.

    It is also an instance of the built-in classes of the kernel's exception, such as ValueError,
    except those that would end a loop or a process. ``facts`` has ``operator``, ``interpreter``,
    ``exception_type``, ``exception_message``, ``exception_cause`` if there is one, and
    ``traceback`` (the kernel's own, as text, with the exception's notes).
    """

    code = "kernel_raised"

    def __init_subclass__(cls) -> None:
        """Share the code: subclasses differ only in the built-in classes. See kernel_errors.py."""


class KernelTimeoutError(OpdispatchError, TimeoutError):
    """A kernel ran longer than the daemon allows, and was stopped with its interpreter.

    ``facts`` has ``operator``, ``interpreter`` and ``seconds``.
    """

    code = "kernel_timeout"


class InterpreterNotFoundError(OpdispatchError, LookupError):
    """No worker interpreter of that name, or none at all, is connected to the daemon."""

    code = "interpreter_not_found"


class InterpreterDiedError(OpdispatchError, ConnectionError):
    """The interpreter that was to run the call is gone; the call may or may not have run.

    ``facts["started"]`` is "no" if it was still queued.
    """

    code = "interpreter_died"


class DaemonUnavailableError(OpdispatchError, ConnectionError):
    """No daemon answers at the address."""

    code = "daemon_unavailable"


class MessageTooLargeError(OpdispatchError, ValueError):
    """A message is larger than the receiver accepts; names the limit and how to raise it."""

    code = "message_too_large"


class DeadlineExceededError(OpdispatchError, TimeoutError):
    """The call was not finished when the caller's deadline passed.

    ``facts["started"]`` is "no" if no kernel had begun to run for it.
    """

    code = "deadline_exceeded"


class RefusedError(OpdispatchError, ConnectionError):
    """The request is refused for now: the daemon is stopping, or a process is overloaded."""

    code = "refused"


class QueueFullError(RefusedError):
    """The queue is full, or large tensors fill the daemon; the call never started.

    ``facts["retry_after"]`` estimates after how many seconds there will be room.
    """

    code = "queue_full"


class CircuitOpenError(RefusedError):
    """The operator has brought down several interpreters in a row; its calls are refused for now.

    That ends by itself: ``facts["retry_after"]`` says after how many seconds one call is tried.
    """

    code = "circuit_open"


class RemoteValueGoneError(OpdispatchError, LookupError):
    """A remote tensor is gone, or never existed.

    ``facts`` has ``value``, its id, and if known the ``interpreter`` that kept it and the
    ``reason``.
    """

    code = "remote_value_gone"


class RemoteLimitError(OpdispatchError, MemoryError):
    """A session keeps as many remote values, or bytes in them, as the daemon allows.

    ``facts["limit"]`` is that number.
    """

    code = "remote_limit"


class ResourceLimitError(OpdispatchError, OSError):
    """A process of the service has exhausted a resource of the system.

    ``facts["resource"]`` names it, such as "file descriptors". No kernel requested it: errors of
    kernels are KernelErrors.
    """

    code = "resource_limit"


class UnauthenticatedError(OpdispatchError, ConnectionError):
    """The daemon cannot identify the client: it sent no token, or an invalid one."""

    code = "unauthenticated"


class PermissionDeniedError(OpdispatchError, PermissionError):
    """The client lacks the role that this needs.

    ``facts`` has ``role``, and ``needed``, the role that suffices; if it concerns a library's
    registrations, ``namespace``, too.
    """

    code = "permission_denied"


class EventLoopError(OpdispatchError, RuntimeError):
    """An asyncio session was used in an event loop other than the one in which it was opened."""

    code = "event_loop"


class JournalError(OpdispatchError, RuntimeError):
    """The daemon's journal is damaged, in use by another process, or cannot be written to.

    Changes that could not be recorded were not made.
    """

    code = "journal"


class UnknownModeError(OpdispatchError, NotImplementedError):
    """The caller has a mode enabled that the other side does not know.

    ``facts["mode"]`` is its name. The call never started.
    """

    code = "unknown_mode"


class WireError(OpdispatchError, ValueError):
    """A value or message is malformed, or cannot be represented on the wire.

    The message starts with the place of the fault, such as ``$.args[2].shape[0]``.
    """

    code = "wire"


def copy_of_error(error: ErrorT) -> ErrorT:
    """Return a copy for another thread or task to raise, since raising adds to a traceback."""
    return copy.copy(error).with_traceback(error.__traceback__)
