"""The libraries of an interpreter: carries out the daemon's instructions, one at a time."""

from __future__ import annotations

import gc
import itertools
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from opdispatch import Dispatcher, KernelFunction
from opdispatch.arrays import collected_backends
from opdispatch.errors import InternalError, OpdispatchError, RegistrationError
from opdispatch.library.unload_hooks import collected_unload_hooks, run_unload_hooks
from opdispatch.library.warmup import collected_warmup_calls
from opdispatch_server.blame.flight_record import IMPORT, UNLOAD, Subject
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.full_collections import FullCollections
from opdispatch_server.library_code.module_file import digest_module
from opdispatch_server.library_code.module_import import FolderImport, LibraryImport, ModuleImport
from opdispatch_server.library_code.module_names import NAMES
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
from opdispatch_server.lifted_kernels import LiftedKernels
from opdispatch_server.process_memory import trim_memory
from opdispatch_server.registration_codec import batch_from_proto, batch_to_proto, rules_last
from opdispatch_server.worker.libraries.loaded import UNLOAD_SECONDS, LoadedLibrary, gone_error
from opdispatch_server.worker.libraries.unloaded_code import UnloadedCode
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.v1 import interpreter_pb2 as pb

# Numbers for the modules of uploads. Not load ids, which another daemon counts from the beginning.
_IMPORTS = itertools.count(1)
MANY_REGISTRATIONS = 5_000
# the largest value in the batch's field; threads run out long before
HIGHEST_CONCURRENCY = 2**31 - 1


class InterpreterLibraries:
    """Libraries that are loaded here, and mirrors of others', by load id.

    One thread carries out instructions. Any thread may call ``get``.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        make_forwarding_kernel: Callable[[int, str], KernelFunction],
        unpacked: UnpackedLibraries,
    ) -> None:
        """Hold libraries; ``unpacked`` has the uploads for which the daemon names no folder."""
        self.dispatcher = dispatcher
        self._make_forwarding_kernel = make_forwarding_kernel
        self._unpacked = unpacked
        self._libraries: dict[int, LoadedLibrary] = {}
        # The version that was imported last, and is not published yet.
        self._staged: LoadedLibrary | None = None
        self._collections = FullCollections()
        self.unloaded = UnloadedCode()
        """The code of unloaded libraries that is still in use."""
        NAMES.reserve_loaded()

    def get(self, load_id: int) -> LoadedLibrary:
        """Return the version with code of this load id. Raises RefusedError if it is gone."""
        library = self._libraries.get(load_id)
        if library is None or library.imported is None:
            raise gone_error(load_id)
        return library

    def subject_of(self, message: pb.DaemonMessage) -> Subject | None:
        """Return the user code that an instruction runs, for the flight record.

        None if it runs none.
        """
        match message.WhichOneof("kind"):
            case "stage":
                return Subject(IMPORT, message.stage.name)
            case "retire" if not message.retire.keep:
                library = self._libraries.get(message.retire.load_id)
            case "abort" if self._has_staged(message.abort.load_id):
                library = self._staged
            case _:
                return None
        if library is None or library.imported is None:  # a mirror: its code runs elsewhere
            return None
        return Subject(UNLOAD, library.name)

    def drop_all(self) -> None:
        """Undo and release everything: the daemon that loaded it is gone."""
        self._abandon_staged()
        while self._libraries:
            _, library = self._libraries.popitem()  # the newest first
            library.retire(self.dispatcher)
            library.release()

    def close(self, seconds: float) -> None:
        """Call the functions that libraries passed to ``on_unload``: the process ends.

        They run concurrently, for at most ``seconds``.
        """
        self._abandon_staged()
        threads = [
            threading.Thread(target=library.unload, args=(seconds,), daemon=True)
            for library in self._libraries.values()
            if library.imported is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * seconds)

    def obey(self, message: pb.DaemonMessage) -> pb.InterpreterMessage:
        """Carry out one instruction. Raises OpdispatchError, and then nothing has changed."""
        with self._collections.put_off():
            return self._obey(message)

    def _obey(self, message: pb.DaemonMessage) -> pb.InterpreterMessage:
        answer = pb.InterpreterMessage(instruction_id=message.instruction_id)
        match message.WhichOneof("kind"):
            case "stage":
                answer.staged.CopyFrom(self._stage(message.stage))
                fault_point(FaultPoint.INTERPRETER_STAGED)
                return answer
            case "commit":
                self._commit(message.commit)
                fault_point(FaultPoint.INTERPRETER_PUBLISHED)
            case "abort":
                self._abort(message.abort)
            case "retire":
                self._retire(message.retire)
                fault_point(FaultPoint.INTERPRETER_RETIRED)
            case "mirror":
                self._mirror(message.mirror)
            case "restore":
                self._restore(message.restore)
            case "report_registry":
                answer.registry_report.CopyFrom(self._report())
                return answer
            case "trim":
                trim_memory()
            case kind:
                raise InternalError(f"an interpreter cannot carry out {kind!r}")
        answer.done.SetInParent()
        return answer

    def _stage(self, stage: pb.Stage) -> pb.RegistrationBatch:
        replaced = self._libraries.get(stage.replaces)
        imported = self._prepare_import(stage, replaced.imported if replaced else None)
        with self.dispatcher.transaction() as transaction:
            for library in self._libraries.values():
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
        self._staged = LoadedLibrary(
            stage.load_id,
            stage.name,
            registrations,
            imported,
            max_concurrency,
            backends,
            stage.version,
            hooks,
            self.unloaded,
        )
        if len(registrations) > MANY_REGISTRATIONS and gc.isenabled():
            # A full collection would soon be due, and take so long that the daemon might miss
            # heartbeats; during an import it expects none.
            gc.collect()
        return batch

    def _prepare_import(self, stage: pb.Stage, replaced: LibraryImport | None) -> LibraryImport:
        if stage.WhichOneof("source") == "module":
            return ModuleImport(stage.module, replaced)
        path = Path(stage.folder or self._unpacked.find(stage.sha256, stage.filename))
        return FolderImport(LibraryFolder(path, stage.filename, stage.name), next(_IMPORTS))

    def _commit(self, commit: pb.Commit) -> None:
        staged = self._staged
        if staged is None or staged.imported is None or staged.load_id != commit.load_id:
            raise InternalError(f"load {commit.load_id} was not staged")
        self._publish(staged, commit.above)
        staged.imported.confirm()
        self._staged = None

    def _abort(self, abort: pb.Abort) -> None:
        if self._has_staged(abort.load_id):
            self._abandon_staged()

    def _has_staged(self, load_id: int) -> bool:
        return self._staged is not None and self._staged.load_id == load_id

    def _abandon_staged(self) -> None:
        staged, self._staged = self._staged, None
        if staged is not None and staged.imported is not None:
            imported = staged.imported
            staged.close_backends()
            staged.unload(UNLOAD_SECONDS)
            imported.abandon()  # restores the modules that it replaced

    def _retire(self, retire: pb.Retire) -> None:
        library = self._libraries.get(retire.load_id)
        if library is None:
            return
        library.retire(self.dispatcher)
        if not retire.keep:
            del self._libraries[retire.load_id]
            library.release()

    def _mirror(self, mirror: pb.Mirror) -> None:
        registrations = batch_from_proto(mirror.batch, self._make_forwarding_kernel)
        before = self._libraries.get(mirror.load_id)
        library = LoadedLibrary(mirror.load_id, mirror.name, registrations)
        self._publish(library, mirror.above)
        if before is not None:
            before.release()

    def _restore(self, restore: pb.Restore) -> None:
        library = self.get(restore.load_id)
        self._publish(library)
        if library.imported is not None:
            library.imported.reinstate()

    def _publish(self, library: LoadedLibrary, above: Iterable[int] = ()) -> None:
        """Publish a version, below those with the load ids ``above`` that are here."""
        before = self._libraries.get(library.load_id)
        if before is not None and before is not library and before.in_force:
            self._exchange(before, library)
            return
        others = [other for other in self._libraries.values() if other is not library]
        later = [self._libraries[i] for i in above if i in self._libraries]
        with self._below(later, library):
            library.publish(self.dispatcher, others)
        # In the order of publication.
        for each in (library, *later):
            self._libraries.pop(each.load_id, None)
            self._libraries[each.load_id] = each

    def _report(self) -> pb.RegistryReport:
        return pb.RegistryReport(
            load_ids=[i for i, library in self._libraries.items() if library.wholly_in_force],
            violations=self.dispatcher.check_invariants(),
        )

    def _exchange(self, before: LoadedLibrary, library: LoadedLibrary) -> None:
        """Replace what this interpreter had of the same version.

        Of several kernels for one slot the newest wins. So everything published later, here and in
        all processes, is registered again above it.
        """
        ids = list(self._libraries)
        later = [self._libraries[i] for i in ids[ids.index(library.load_id) + 1 :]]
        with self._below(later, library):
            before.retire(self.dispatcher)
            library.publish(self.dispatcher, ())
        self._libraries[library.load_id] = library

    @contextmanager
    def _below(self, later: Sequence[LoadedLibrary], library: LoadedLibrary) -> Iterator[None]:
        """Publish ``library`` in the block, below the kernels of ``later``."""
        with self.dispatcher.transaction():
            lifted = [LiftedKernels(each.handles, library.registrations) for each in later]
            yield
            for each, kernels in zip(later, lifted, strict=True):
                each.handles = kernels.put_back(self.dispatcher)


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
