"""Errors of the service, besides the dispatcher's own.

OpdispatchError                      (opdispatch.errors)
├── LibraryNotFoundError             no library of that name is loaded
├── LibraryLoadError                 a library did not load; carries the traceback
├── KernelError                      a kernel raised; carries type, message and traceback
├── InterpreterNotFoundError         no interpreter of that name, or none at all
├── KernelTimeoutError               a kernel ran for longer than the daemon lets it
├── InterpreterDiedError             the process that was running the call is gone
├── DaemonUnavailableError           no daemon listens at that address
├── MessageTooLargeError             a message is over the limit
├── DeadlineExceededError            the caller's time is up
├── RefusedError                     the daemon is draining, or a process busy; try again
│   ├── QueueFullError               as many calls wait as may; says when to try again
│   └── CircuitOpenError             the operator has brought interpreters down; says the same
├── RemoteValueGoneError             a remote tensor is not there any more, or never was
├── RemoteLimitError                 a session keeps as many remote values as it may
├── ResourceLimitError               a process has no descriptors, memory or threads left
├── UnauthenticatedError             the daemon does not know the client
├── PermissionDeniedError            the client lacks the role that this needs
├── EventLoopError                   an asyncio session is used in an event loop not its own
├── JournalError                     the daemon's journal cannot be used, or not written to
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
    ``facts["line"]`` the offending line as ``FILE:LINE`` where one is known. If its environment
    could not be made, ``facts["output"]`` has the last lines of the installer.
    """

    code = "library_load"


class KernelError(OpdispatchError, RuntimeError):
    """A kernel raised in its interpreter.

    It is an instance of the built-in classes of what the kernel raised as well, such as ValueError,
    but of none that would end a loop or a process. ``facts`` has ``operator``, ``interpreter``,
    ``exception_type``, ``exception_message``, ``exception_cause`` if it was raised from another
    one, and ``traceback`` (the kernel's own, as text, with the notes that the exception has).
    """

    code = "kernel_raised"

    def __init_subclass__(cls) -> None:
        """Share the code: subclasses differ in the built-in classes alone. See kernel_errors.py."""


class KernelTimeoutError(OpdispatchError, TimeoutError):
    """A kernel ran for longer than the daemon lets it, and was stopped with its interpreter.

    ``facts`` has ``operator``, ``interpreter`` and ``seconds``.
    """

    code = "kernel_timeout"


class InterpreterNotFoundError(OpdispatchError, LookupError):
    """No worker interpreter of that name, or none at all, is connected to the daemon."""

    code = "interpreter_not_found"


class InterpreterDiedError(OpdispatchError, ConnectionError):
    """The interpreter that was to run the call is gone; the call may or may not have run.

    ``facts["started"]`` is "no" where it was still queued.
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
    """The request is not taken now: the daemon is stopping, or a process has too much to do."""

    code = "refused"


class QueueFullError(RefusedError):
    """As many calls wait as may, or large tensors fill the daemon; this one never started.

    ``facts["retry_after"]`` is in how many seconds there is likely to be room.
    """

    code = "queue_full"


class CircuitOpenError(RefusedError):
    """The operator has brought down interpreters in a row; its calls are refused for a while.

    That ends by itself. ``facts["retry_after"]`` is in how many seconds one call is tried.
    """

    code = "circuit_open"


class RemoteValueGoneError(OpdispatchError, LookupError):
    """A remote tensor is not there any more, or never was.

    ``facts`` has ``value``, its id, and where they are known the ``interpreter`` that kept it
    and the ``reason``.
    """

    code = "remote_value_gone"


class RemoteLimitError(OpdispatchError, MemoryError):
    """A session keeps as many remote values, or bytes in them, as the daemon lets it.

    ``facts["limit"]`` is that number.
    """

    code = "remote_limit"


class ResourceLimitError(OpdispatchError, OSError):
    """A process of the service has run out of something that the system gives it.

    ``facts["resource"]`` names it, such as "file descriptors". It was not a kernel that asked for
    it: what a kernel raises is a KernelError.
    """

    code = "resource_limit"


class UnauthenticatedError(OpdispatchError, ConnectionError):
    """The daemon does not know who asks: there is no token, or one that is not valid there."""

    code = "unauthenticated"


class PermissionDeniedError(OpdispatchError, PermissionError):
    """The one the client lacks the role that this needs.

    ``facts`` has ``role``, and ``needed``, the role that would do; where it is about what a library
    registers, ``namespace``, too.
    """

    code = "permission_denied"


class EventLoopError(OpdispatchError, RuntimeError):
    """A session of asyncio was used in another event loop than the one that it was opened in."""

    code = "event_loop"


class JournalError(OpdispatchError, RuntimeError):
    """The daemon's journal is damaged, in use by another, or cannot be written to.

    What could not be recorded has not been done.
    """

    code = "journal"


class UnknownModeError(OpdispatchError, NotImplementedError):
    """The caller has switched something on that the other side does not know.

    ``facts["mode"]`` is its name. The call never started.
    """

    code = "unknown_mode"


class WireError(OpdispatchError, ValueError):
    """A value or message is malformed, or has no representation on the wire.

    The message starts with the place of the fault, such as ``$.args[2].shape[0]``.
    """

    code = "wire"


def copy_of_error(error: ErrorT) -> ErrorT:
    """Return a copy for another thread or task to raise: raising an error adds to its traceback."""
    return copy.copy(error).with_traceback(error.__traceback__)
