"""What a kernel has raised, as the error of its call."""

from __future__ import annotations

from collections.abc import Mapping

from opdispatch.arrays import explain_device_error
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


def is_of_kernel(error: OpdispatchError) -> bool:
    """Return whether a call has failed by its kernel: by what that raised or returned."""
    return isinstance(error, KernelError | ReturnError) or (
        isinstance(error, DeviceError | DeviceMemoryError) and "traceback" in error.facts
    )


def was_logged_elsewhere(error: OpdispatchError) -> bool:
    """Return whether what the kernel raised is the error of a call that it had made.

    The interpreter that ran that call has logged it.
    """
    return isinstance(error.__cause__, KernelError)


def error_of_kernel(error: BaseException, what: str, facts: Mapping[str, str]) -> OpdispatchError:
    """A KernelError; or a DeviceError, if the kernel is not to blame, or only a device is there to.

    ``what`` names the kernel; ``facts`` are its operator and interpreter, at least.
    """
    found = explain_device_error(error)
    if found is None and isinstance(error, DeviceMemoryError | DeviceLostError):
        found = error  # a backend's, or that of another operator
    if found is not None:
        return type(found)(
            f"{what} failed: {found.message}",
            hint=found.hint,
            # Another interpreter's has a traceback already, which the new one ends with.
            **{**found.facts, **facts, "traceback": format_user_traceback(error)},
        )
    message = error.message if isinstance(error, OpdispatchError) else exception_message(error)
    return KernelError(
        f"{what} raised {describe_exception(error)}",
        **facts,
        exception_type=type(error).__qualname__,
        exception_message=message,
        traceback=format_user_traceback(error),
    )
