"""Sessions with an opdispatch daemon, from Python and from the command line.

    aio/, blocking/                     connect, and the sessions; blocking is generated from aio
    session_base, connection_base       the parts that both kinds of sessions share
    rpcs, request_arguments, listings   requests to the daemon and their replies; no I/O
    endpoint                            the daemon's address, and the session's time limits
    daemon_wait                         waiting for a daemon that restarts
    grpc_forks                          whether gRPC works in a forked process
    library_upload                      uploads a library's files in chunks
    read_timeout                        the timeout between two messages of a stream

    Calls:

    remote_ops, operator_catalog        session.ops.namespace.name.overload, and help for it
    operator_call, call_shape           one call, and the key under which similar calls are cached
    map_arguments                       the arguments of map
    remote_value, value_lease           tensors that stay in interpreters, and what keeps them alive
    planned_keep                        the results that a planned call keeps
    program_recording, program_call,
    traced_function                     programs: recorded, sent, traced from functions

    Transport:

    session_memory                      memory shared with interpreters on the same machine
    call_options                        options of calls that differ from the session's
    lanes/                              connections for calls, to the daemon or an interpreter

    cli/                                the `opdispatch` command

Every error of the daemon or of a kernel is raised as an ``OpdispatchError``; the classes are
importable from here. Modules are imported on first use: ``opdispatch --help`` needs neither gRPC
nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opdispatch.errors import (
        AmbiguousKernelError,
        ArgumentError,
        AutogradError,
        DeviceError,
        DeviceLostError,
        DeviceMemoryError,
        DispatchKeyError,
        DuplicateDefinitionError,
        GraphError,
        KernelTypeError,
        LibraryError,
        NoKernelError,
        OpdispatchError,
        OperatorNotFoundError,
        RegistrationError,
        ReturnError,
        ScalarRangeError,
        SchemaError,
        SchemaMismatchError,
        WaitTimeoutError,
    )
    from opdispatch_client import aio
    from opdispatch_client.aio import AsyncSession
    from opdispatch_client.aio.program import AsyncProgram
    from opdispatch_client.aio.remote_tensor import AsyncRemoteTensor
    from opdispatch_client.blocking import Session, connect
    from opdispatch_client.blocking.program import Program
    from opdispatch_client.blocking.remote_tensor import RemoteTensor
    from opdispatch_client.listings import (
        Activity,
        CallActivity,
        Interpreter,
        InterpreterActivity,
        InterpreterDeath,
        KernelSummary,
        Library,
        LoadedLibrary,
        OperatorDescription,
        OperatorSummary,
        RegistryChange,
        RolledBack,
        ServerInfo,
        TableRow,
        TraceLine,
        UnloadedLibrary,
    )
    from opdispatch_client.program_recording import Placeholder
    from opdispatch_wire.addresses import AddressError
    from opdispatch_wire.caller_tensors import TransferProgress
    from opdispatch_wire.errors import (
        CircuitOpenError,
        DaemonUnavailableError,
        DeadlineExceededError,
        EventLoopError,
        InterpreterDiedError,
        InterpreterNotFoundError,
        JournalError,
        KernelError,
        KernelTimeoutError,
        LibraryLoadError,
        LibraryNotFoundError,
        MessageTooLargeError,
        PermissionDeniedError,
        QueueFullError,
        RefusedError,
        RemoteLimitError,
        RemoteValueGoneError,
        ResourceLimitError,
        UnauthenticatedError,
        WireError,
    )

__all__ = [
    "Activity",
    "AddressError",
    "AmbiguousKernelError",
    "ArgumentError",
    "AsyncProgram",
    "AsyncRemoteTensor",
    "AsyncSession",
    "AutogradError",
    "CallActivity",
    "CircuitOpenError",
    "DaemonUnavailableError",
    "DeadlineExceededError",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DispatchKeyError",
    "DuplicateDefinitionError",
    "EventLoopError",
    "GraphError",
    "Interpreter",
    "InterpreterActivity",
    "InterpreterDeath",
    "InterpreterDiedError",
    "InterpreterNotFoundError",
    "JournalError",
    "KernelError",
    "KernelSummary",
    "KernelTimeoutError",
    "KernelTypeError",
    "Library",
    "LibraryError",
    "LibraryLoadError",
    "LibraryNotFoundError",
    "LoadedLibrary",
    "MessageTooLargeError",
    "NoKernelError",
    "OpdispatchError",
    "OperatorDescription",
    "OperatorNotFoundError",
    "OperatorSummary",
    "PermissionDeniedError",
    "Placeholder",
    "Program",
    "QueueFullError",
    "RefusedError",
    "RegistrationError",
    "RegistryChange",
    "RemoteLimitError",
    "RemoteTensor",
    "RemoteValueGoneError",
    "ResourceLimitError",
    "ReturnError",
    "RolledBack",
    "ScalarRangeError",
    "SchemaError",
    "SchemaMismatchError",
    "ServerInfo",
    "Session",
    "TableRow",
    "TraceLine",
    "TransferProgress",
    "UnauthenticatedError",
    "UnloadedLibrary",
    "WaitTimeoutError",
    "WireError",
    "aio",
    "connect",
]

_NAMES_OF_MODULE = {
    "opdispatch_client.blocking": ("Session", "connect"),
    "opdispatch_client.blocking.program": ("Program",),
    "opdispatch_client.blocking.remote_tensor": ("RemoteTensor",),
    "opdispatch_client.aio": ("AsyncSession",),
    "opdispatch_client.aio.program": ("AsyncProgram",),
    "opdispatch_client.aio.remote_tensor": ("AsyncRemoteTensor",),
    "opdispatch_client.program_recording": ("Placeholder",),
    "opdispatch_client.listings": (
        "Activity",
        "CallActivity",
        "Interpreter",
        "InterpreterActivity",
        "InterpreterDeath",
        "KernelSummary",
        "Library",
        "LoadedLibrary",
        "OperatorDescription",
        "OperatorSummary",
        "RegistryChange",
        "RolledBack",
        "ServerInfo",
        "TableRow",
        "TraceLine",
        "UnloadedLibrary",
    ),
    "opdispatch.errors": (
        "AmbiguousKernelError",
        "ArgumentError",
        "AutogradError",
        "DeviceError",
        "DeviceLostError",
        "DeviceMemoryError",
        "DispatchKeyError",
        "DuplicateDefinitionError",
        "GraphError",
        "KernelTypeError",
        "LibraryError",
        "NoKernelError",
        "OpdispatchError",
        "OperatorNotFoundError",
        "RegistrationError",
        "ReturnError",
        "ScalarRangeError",
        "SchemaError",
        "SchemaMismatchError",
        "WaitTimeoutError",
    ),
    "opdispatch_wire.addresses": ("AddressError", "UnsafeAddressError"),
    "opdispatch_wire.caller_tensors": ("TransferProgress",),
    "opdispatch_wire.errors": (
        "CircuitOpenError",
        "DaemonUnavailableError",
        "DeadlineExceededError",
        "EventLoopError",
        "InterpreterDiedError",
        "InterpreterNotFoundError",
        "JournalError",
        "KernelError",
        "KernelTimeoutError",
        "LibraryLoadError",
        "LibraryNotFoundError",
        "MessageTooLargeError",
        "PermissionDeniedError",
        "QueueFullError",
        "RefusedError",
        "RemoteLimitError",
        "RemoteValueGoneError",
        "ResourceLimitError",
        "UnauthenticatedError",
        "WireError",
    ),
}
_MODULE_OF_NAME = {name: module for module, names in _NAMES_OF_MODULE.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "aio":
        return import_module("opdispatch_client.aio")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF_NAME[name]), name)
    globals()[name] = value  # later accesses bypass __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
