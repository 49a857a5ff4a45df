"""The libraries of an interpreter: carries out the daemon's instructions, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from opdispatch import Dispatcher, KernelFunction
from opdispatch.errors import InternalError
from opdispatch_server.blame.flight_record import IMPORT, UNLOAD, Subject
from opdispatch_server.fault_points import FaultPoint, fault_point
from opdispatch_server.full_collections import FullCollections
from opdispatch_server.library_code.module_names import NAMES
from opdispatch_server.library_code.unpacked_libraries import UnpackedLibraries
from opdispatch_server.lifted_kernels import LiftedKernels
from opdispatch_server.process_memory import trim_memory
from opdispatch_server.registration_codec import batch_from_proto
from opdispatch_server.worker.libraries.loaded import LoadedLibrary, gone_error
from opdispatch_server.worker.libraries.staging import InterpreterStaging
from opdispatch_server.worker.libraries.unloaded_code import UnloadedCode
from opdispatch_wire.v1 import interpreter_pb2 as pb


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
        self._libraries: dict[int, LoadedLibrary] = {}
        self._collections = FullCollections()
        self.unloaded = UnloadedCode()
        """The code of unloaded libraries that is still in use."""
        self._staging = InterpreterStaging(dispatcher, unpacked, self.unloaded)
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
            case "abort":
                library = self._staging.find(message.abort.load_id)
            case _:
                return None
        if library is None or library.imported is None:  # a mirror: its code runs elsewhere
            return None
        return Subject(UNLOAD, library.name)

    def drop_all(self) -> None:
        """Undo and release everything: the daemon that loaded it is gone."""
        self._staging.abandon()
        while self._libraries:
            _, library = self._libraries.popitem()  # the newest first
            library.retire(self.dispatcher)
            library.release()

    def close(self, seconds: float) -> None:
        """Call the functions that libraries passed to ``on_unload``: the process ends.

        They run concurrently, for at most ``seconds``.
        """
        self._staging.abandon()
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
                replaced = self._libraries.get(message.stage.replaces)
                batch = self._staging.stage(message.stage, self._libraries.values(), replaced)
                answer.staged.CopyFrom(batch)
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

    def _commit(self, commit: pb.Commit) -> None:
        self._publish(self._staging.get(commit.load_id), commit.above)
        self._staging.confirm()

    def _abort(self, abort: pb.Abort) -> None:
        if self._staging.find(abort.load_id) is not None:
            self._staging.abandon()

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
