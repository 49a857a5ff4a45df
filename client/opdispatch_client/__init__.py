"""Sessions with an opdispatch daemon, from Python and from the command line.

    connect, Session        session.py          the blocking session, for any number of threads
    aio.connect             aio.py              its asyncio twin
                            session_base.py     what both do without asking the daemon
                            calling_session.py, async_calling_session.py
                                                their calls, remote tensors and programs
                            rpcs.py             what else both send and how they read it; no I/O
                            remote_ops.py       session.ops.namespace.name.overload
                            library_source.py   a file, folder or module name, as an upload
                            requirements_file.py  what a library needs installed, read here
                            load_progress.py    the steps of a load, as they come
                            listings.py         what the daemon tells: plain frozen values
                            cli/                the `opdispatch` command
                            stress/             `opdispatch stress`: races, checked

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
        SchemaError,
        SchemaMismatchError,
        WaitTimeoutError,
    )
    from opdispatch_client import aio
    from opdispatch_client.aio import AsyncSession
    from opdispatch_client.listings import (
        Interpreter,
        KernelSummary,
        Library,
        LoadedLibrary,
        OperatorDescription,
        OperatorSummary,
        RolledBack,
        ServerInfo,
        TableRow,
        TraceLine,
        UnloadedLibrary,
    )
    from opdispatch_client.program import AsyncProgram, Placeholder, Program
    from opdispatch_client.remote_tensor import AsyncRemoteTensor, RemoteTensor
    from opdispatch_client.session import Session, connect
    from opdispatch_wire.addresses import AddressError
    from opdispatch_wire.caller_tensors import TransferProgress
    from opdispatch_wire.errors import (
        DaemonUnavailableError,
        DeadlineExceededError,
        InterpreterDiedError,
        InterpreterNotFoundError,
        JournalError,
        KernelError,
        KernelTimeoutError,
        LibraryLoadError,
        LibraryNotFoundError,
        MessageTooLargeError,
        QueueFullError,
        RefusedError,
        RemoteLimitError,
        RemoteValueGoneError,
        WireError,
    )

__all__ = [
    "AddressError",
    "AmbiguousKernelError",
    "ArgumentError",
    "AsyncProgram",
    "AsyncRemoteTensor",
    "AsyncSession",
    "AutogradError",
    "DaemonUnavailableError",
    "DeadlineExceededError",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemoryError",
    "DispatchKeyError",
    "DuplicateDefinitionError",
    "GraphError",
    "Interpreter",
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
    "Placeholder",
    "Program",
    "QueueFullError",
    "RefusedError",
    "RegistrationError",
    "RemoteLimitError",
    "RemoteTensor",
    "RemoteValueGoneError",
    "ReturnError",
    "RolledBack",
    "SchemaError",
    "SchemaMismatchError",
    "ServerInfo",
    "Session",
    "TableRow",
    "TraceLine",
    "TransferProgress",
    "UnloadedLibrary",
    "WaitTimeoutError",
    "WireError",
    "aio",
    "connect",
]

_NAMES_OF_MODULE = {
    "opdispatch_client.session": ("Session", "connect"),
    "opdispatch_client.aio": ("AsyncSession",),
    "opdispatch_client.remote_tensor": ("AsyncRemoteTensor", "RemoteTensor"),
    "opdispatch_client.program": ("AsyncProgram", "Placeholder", "Program"),
    "opdispatch_client.listings": (
        "Interpreter",
        "KernelSummary",
        "Library",
        "LoadedLibrary",
        "OperatorDescription",
        "OperatorSummary",
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
        "SchemaError",
        "SchemaMismatchError",
        "WaitTimeoutError",
    ),
    "opdispatch_wire.addresses": ("AddressError",),
    "opdispatch_wire.caller_tensors": ("TransferProgress",),
    "opdispatch_wire.errors": (
        "DaemonUnavailableError",
        "DeadlineExceededError",
        "InterpreterDiedError",
        "InterpreterNotFoundError",
        "JournalError",
        "KernelError",
        "KernelTimeoutError",
        "LibraryLoadError",
        "LibraryNotFoundError",
        "MessageTooLargeError",
        "QueueFullError",
        "RefusedError",
        "RemoteLimitError",
        "RemoteValueGoneError",
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
