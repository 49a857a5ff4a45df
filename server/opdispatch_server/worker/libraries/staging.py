"""Import a version of a library, and roll back its registrations.

The import runs in a transaction of the dispatcher, which is rolled back even if it succeeds: the
daemon checks the registrations before it publishes them. A failed import leaves nothing.
"""

from __future__ import annotations

import gc
import itertools
import reprlib
from collections.abc import Collection
from pathlib import Path
from types import ModuleType

from opdispatch import Dispatcher
from opdispatch.arrays import collected_backends
from opdispatch.errors import InternalError, OpdispatchError, RegistrationError
from opdispatch.library.unload_hooks import collected_unload_hooks, run_unload_hooks
from opdispatch.library.warmup import collected_warmup_calls
from opdispatch_server.library_code.module_file import digest_module
from opdispatch_server.library_code.module_import import FolderImport, LibraryImport, ModuleImport
from opdispatch_server.library_code.unpacked_libraries import (
    LibraryFolder,
    UnpackedLibraries,
    show_paths,
)
from opdispatch_server.library_code.user_traceback import (
    describe_exception,
    find_user_line,
    format_user_traceback,
)
from opdispatch_server.registration_codec import batch_to_proto, rules_last
from opdispatch_server.worker.libraries.loaded import UNLOAD_SECONDS, LoadedLibrary
from opdispatch_server.worker.libraries.unloaded_code import UnloadedCode
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.v1 import interpreter_pb2 as pb

# Numbers for the modules of uploads. Not load ids, which another daemon counts from the beginning.
_IMPORTS = itertools.count(1)
MANY_REGISTRATIONS = 5_000
# the largest value in the batch's field; threads run out long before
HIGHEST_CONCURRENCY = 2**31 - 1


class InterpreterStaging:
    """Stages versions, one at a time. Only one thread may call it.

    ``unpacked`` has the uploads for which the daemon names no folder; ``unloaded`` frees the memory
    of code that is gone.
    """

    def __init__(
        self, dispatcher: Dispatcher, unpacked: UnpackedLibraries, unloaded: UnloadedCode
    ) -> None:
        self._dispatcher = dispatcher
        self._unpacked = unpacked
        self._unloaded = unloaded
        # The version that was imported last, and is not published yet.
        self._staged: tuple[LoadedLibrary, LibraryImport] | None = None

    def stage(
        self,
        stage: pb.Stage,
        loaded: Collection[LoadedLibrary],
        replaced: LoadedLibrary | None,
    ) -> pb.RegistrationBatch:
        """Import a version, roll back its registrations, and return them for the daemon.

        The import does not see ``replaced``, the version that this one replaces, nor others of the
        same library in ``loaded``. Raises the RegistrationError of the import, or LibraryLoadError
        for any other failure, and then nothing has changed.
        """
        imported = self._prepare_import(stage, replaced.imported if replaced else None)
        with self._dispatcher.transaction() as transaction:
            for library in loaded:
                # Versions that are neither active nor replaced are being unloaded.
                if library is replaced or library.name == stage.name:
                    for handle in library.handles:
                        handle.close()
            step = "it was imported"
            try:
                with (
                    collected_unload_hooks() as hooks,
                    collected_backends() as backends,
                    collected_warmup_calls() as calls,
                ):
                    imported.run()
                    # calls that only this thread can make, until it is published
                    for call in calls:
                        step = f"its warm-up call of {call.operator} ran"
                        call.run()
            except BaseException as error:  # even sys.exit() must not end the interpreter
                failure = _load_error(error, stage, imported, step)
                run_unload_hooks(hooks, UNLOAD_SECONDS)
                imported.abandon()
                raise failure from error
            registrations = rules_last(dict.fromkeys(transaction.registrations))
            transaction.rollback()
        try:
            max_concurrency = read_max_concurrency(imported.main_module(), stage)
            kinds = [each.backend.device_type for each in backends]
            batch = batch_to_proto(registrations, max_concurrency, kinds)
            for registration in batch.registrations:
                registration.site = show_paths(registration.site)
            batch.has_unload_hooks = any(hooks)
            if stage.WhichOneof("source") == "module":
                batch.sha256 = digest_module(stage.module)
        except BaseException as error:  # a module may execute anything when an attribute is read
            failure = _load_error(error, stage, imported)
            run_unload_hooks(hooks, UNLOAD_SECONDS)
            imported.abandon()
            for backend in backends:
                backend.close()
            raise failure from error
        library = LoadedLibrary(
            stage.load_id,
            stage.name,
            registrations,
            imported,
            max_concurrency,
            backends,
            stage.version,
            hooks,
            self._unloaded,
        )
        self._staged = library, imported
        if len(registrations) > MANY_REGISTRATIONS and gc.isenabled():
            # A full collection would soon be due, and take so long that the daemon might miss
            # heartbeats; during an import it expects none.
            gc.collect()
        return batch

    def find(self, load_id: int) -> LoadedLibrary | None:
        """Return the staged version if it has this load id."""
        library = self._staged[0] if self._staged is not None else None
        return library if library is not None and library.load_id == load_id else None

    def get(self, load_id: int) -> LoadedLibrary:
        """Return the staged version, which has this load id. Raises InternalError."""
        library = self.find(load_id)
        if library is None:
            raise InternalError(f"load {load_id} was not staged")
        return library

    def confirm(self) -> None:
        """Keep the modules of the staged version, which was published."""
        if self._staged is not None:
            self._staged[1].confirm()
            self._staged = None

    def abandon(self) -> None:
        """Unload the staged version, if there is one, and restore the modules that it replaced."""
        staged, self._staged = self._staged, None
        if staged is not None:
            library, imported = staged
            library.close_backends()
            library.unload(UNLOAD_SECONDS)
            imported.abandon()

    def _prepare_import(self, stage: pb.Stage, replaced: LibraryImport | None) -> LibraryImport:
        if stage.WhichOneof("source") == "module":
            return ModuleImport(stage.module, replaced)
        path = Path(stage.folder or self._unpacked.find(stage.sha256, stage.filename))
        return FolderImport(LibraryFolder(path, stage.filename, stage.name), next(_IMPORTS))


def read_max_concurrency(module: ModuleType, stage: pb.Stage) -> int:
    """Return a library's ``max_concurrency``; 1 if it has none. Raises LibraryLoadError."""
    value = getattr(module, "max_concurrency", 1)
    if type(value) is int and value >= 1:
        return min(value, HIGHEST_CONCURRENCY)
    label = stage.filename or stage.module
    raise LibraryLoadError(
        f"{label}: max_concurrency is {reprlib.repr(value)}; expected an int of at least 1",
        hint="it limits how many calls of the library run in an interpreter at a time",
        library=stage.name,
    )


def _load_error(
    error: BaseException, stage: pb.Stage, imported: LibraryImport, step: str = "it was imported"
) -> OpdispatchError:
    """Return the error for the client, with the traceback and the line that is to blame.

    ``step`` describes what was being done.
    """
    if isinstance(error, LibraryLoadError):
        return error
    line = find_user_line(error, imported.owns)
    found = {"library": stage.name, "line": line, "traceback": format_user_traceback(error)}
    if isinstance(error, RegistrationError):
        shown = show_paths(error.message)
        message = f"{line}: {shown}" if line else shown
        return type(error)(message, hint=error.hint, **{**error.facts, **found})
    label = stage.filename or stage.module
    where = f", at {line}" if line else ""
    is_nowhere = isinstance(error, ModuleNotFoundError) and error.name == stage.module
    uploads = f"a file or a folder is uploaded by its path: {label}.py, {label}/"
    return LibraryLoadError(
        f"{label} raised {show_paths(describe_exception(error))} when {step}{where}",
        hint=uploads if is_nowhere else "",
        exception_type=type(error).__qualname__,
        **found,
    )
