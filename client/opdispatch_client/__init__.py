"""Sessions with an opdispatch daemon, from Python and from the command line.

    aio/, blocking/                     connect, and the sessions; blocking is generated from aio
    session_base, connection_base       what both do, which is the same
    rpcs, request_arguments, listings   what both ask of the daemon, and what it tells; no I/O
    endpoint                            where a session goes, and how long it waits
    daemon_wait                         waiting for a daemon that is away
    grpc_forks                          which processes it can be opened in
    library_upload                      files of a library, in chunks
    read_timeout                        how long the daemon may say nothing in a stream

    What is called:

    remote_ops, operator_catalog        session.ops.namespace.name.overload, and help for it
    operator_call, call_shape           one call, and what it has in common with others
    map_arguments                       what map calls an operator with
    remote_value, value_lease           tensors that stay in interpreters, for as long as they live
    planned_keep                        those that one planned call leaves there
    program_recording, program_call,
    traced_function                     programs: recorded, sent, made of functions

    How calls travel:

    session_memory                      memory that is shared with those on the same machine
    call_options                        what calls may have otherwise than their session
    lanes/                              the ways: to the daemon, or directly to an interpreter

    cli/                                the `opdispatch` command

Everything that the daemon or a kernel can do wrong is an ``OpdispatchError``; the classes are
importable from here. Nothing is imported before it is used: ``opdispatch --help`` needs
neither gRPC nor NumPy.
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
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
