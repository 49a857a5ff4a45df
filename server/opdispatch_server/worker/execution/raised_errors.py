"""Converts exceptions of kernels to the errors of their calls."""

from __future__ import annotations

from collections.abc import Mapping

from opdispatch.arrays import explain_device_error
from opdispatch.boxing.read_only_arguments import hint_of_write
from opdispatch.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    OpdispatchError,
    ReturnError,
)
from opdispatch_server.library_code.user_traceback import (
    describe_exception,
    exception_message,
    format_user_traceback,
)
from opdispatch_wire.errors import KernelError
from opdispatch_wire.kernel_errors import facts_of_exception


def is_of_kernel(error: OpdispatchError) -> bool:
    """Return whether a call failed because of its kernel: its exception, or its results."""
    return isinstance(error, KernelError | ReturnError) or (
        isinstance(error, DeviceError | DeviceMemoryError) and "traceback" in error.facts
    )


def was_logged_elsewhere(error: OpdispatchError) -> bool:
    """Return whether the kernel raised the error of a nested call.

    The interpreter that ran that call has logged it.
    """
    return isinstance(error.__cause__, KernelError)


def error_of_kernel(error: BaseException, what: str, facts: Mapping[str, str]) -> OpdispatchError:
    """Return a KernelError; or a DeviceError, if the kernel, or only a device, is not to blame.

    ``what`` names the kernel; ``facts`` are at least its operator and interpreter.
    """
    found = explain_device_error(error)
    if found is None and isinstance(error, DeviceMemoryError | DeviceLostError):
        found = error  # raised by a backend, or by another operator
    if found is not None:
        return type(found)(
            f"{what} failed: {found.message}",
            hint=found.hint,
            # Another interpreter's error has a traceback already, with which the new one ends.
            **{**found.facts, **facts, "traceback": format_user_traceback(error)},
        )
    message, hint = exception_message(error), hint_of_write(error)
    if isinstance(error, OpdispatchError):
        message, hint = error.message, ""
    text = f"{what} raised {describe_exception(error)}"
    cause = {}
    if error.__cause__ is not None:  # a truncated traceback may have lost it
        described = describe_exception(error.__cause__)
        text, cause = f"{text}, caused by {described}", {"exception_cause": described}
    return KernelError(
        text,
        hint=hint,
        **facts,
        **facts_of_exception(error),
        exception_type=type(error).__qualname__,
        exception_message=message,
        **cause,
        traceback=format_user_traceback(error),
    )
