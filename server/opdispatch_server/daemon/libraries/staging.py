"""Importing a version of a library in interpreters, without publishing it there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from opdispatch.errors import OpdispatchError
from opdispatch_server.blame.flight_record import IMPORT, Subject
from opdispatch_server.blame.suspicion import Cause, Verdict
from opdispatch_server.daemon.environments.build import Report
from opdispatch_server.daemon.interpreters.session import InterpreterSession, checked_answer
from opdispatch_server.daemon.libraries.instructions import (
    InterpreterInstructions,
    StopInterpreter,
    finish,
)
from opdispatch_server.daemon.libraries.steady_report import saying
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_wire.errors import DeadlineExceededError, InterpreterDiedError
from opdispatch_wire.v1 import interpreter_pb2 as pb


class LibraryStaging:
    """Stages versions: imports them before publication. For use in the event loop only.

    ``judge`` returns the verdict on an interpreter's end.
    """

    def __init__(
        self,
        instructions: InterpreterInstructions,
        store: LibraryStore,
        kill_interpreter: StopInterpreter,
        judge: Callable[[InterpreterSession], Verdict],
    ) -> None:
        self._instructions = instructions
        self._store = store
        self._kill_interpreter = kill_interpreter
        self._judge = judge

    async def stage(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        replaced: LibraryVersion | None,
        *,
        timeout: float,
        report: Report = lambda line: None,
    ) -> pb.RegistrationBatch:
        """Import a version in an interpreter; ``publish``, ``join`` or ``abandon`` follows.

        ``report`` is called if transferring the files takes long. Raises what the import raised,
        LibraryLoadError or JournalError if its files are damaged or cannot be unpacked,
        DeadlineExceededError, or InterpreterDiedError.
        """
        stage = pb.Stage(
            load_id=version.load_id,
            name=version.name,
            version=version.version,
            replaces=replaced.load_id if replaced else 0,
        )
        if version.source.is_module:
            stage.module = version.source.label
        else:
            stage.filename = version.source.label
            stage.sha256 = version.source.sha256
            async with saying(report, f"{session.name} is getting the files of {version}"):
                stage.folder = await self._provide_files(version, session)
        message = pb.DaemonMessage(stage=stage)
        session.importing = str(version)
        try:
            async with asyncio.timeout(timeout):
                abort = pb.DaemonMessage(abort=pb.Abort(load_id=version.load_id))
                answer = await self._instructions.unless_busy(
                    version, session, session.post(message), abort
                )
        except TimeoutError as error:
            self._kill_interpreter(
                session,
                f"the import of {version} took too long",
                Cause.OVERDUE,
                Subject(IMPORT, version.name),
            )
            raise DeadlineExceededError(
                f"importing {version.source.label} took longer than {timeout:g} s; interpreter "
                f"{session.name}, which was doing it, has been stopped",
                hint="raise the limit with `opdispatch serve --load-timeout`",
                interpreter=session.name,
                suspect="yes",
            ) from error
        except InterpreterDiedError as error:
            if session.busy and session.alive:
                raise
            await session.explain_end()
            doing = f"importing {version.source.label}"
            verdict = self._judge(session)
            if verdict.accuses(Subject(IMPORT, version.name)):
                raise session.death(doing, suspect="yes") from error
            raise session.death(doing) from error
        finally:
            session.importing = ""
        try:
            return checked_answer(answer).staged
        except OpdispatchError as error:
            if "unfit" not in error.facts:
                raise
            # The library is not to blame: another interpreter can import it.
            session.note_unfit(error.facts["unfit"], error.facts.get("unfit_after", ""))
            raise session.death(f"importing {version.source.label}", started="no") from error

    async def stage_others(
        self,
        version: LibraryVersion,
        session: InterpreterSession,
        others: Sequence[InterpreterSession],
        replaced: LibraryVersion | None,
        *,
        timeout: float,
        needs_all: bool,
    ) -> dict[InterpreterSession, pb.RegistrationBatch]:
        """Import in ``others`` what ``session`` has staged; if one fails, unstage it in all.

        Raises the errors of ``stage``, of the first that fails. An interpreter that dies of
        something else counts as a failure only if ``needs_all`` is true.
        """
        outcomes = await asyncio.gather(
            *(self.stage(version, each, replaced, timeout=timeout) for each in others),
            return_exceptions=True,
        )
        staged, failures = {}, []
        for each, outcome in zip(others, outcomes, strict=True):
            if not isinstance(outcome, BaseException):
                staged[each] = outcome
            elif (
                needs_all
                or not isinstance(outcome, InterpreterDiedError)
                or "suspect" in outcome.facts  # the import has ended it
            ):
                failures.append(outcome)
        if failures:
            await self.abandon(version, session, *staged)
            raise failures[0]
        return staged

    async def abandon(self, version: LibraryVersion, *sessions: InterpreterSession) -> None:
        """Undo what interpreters have staged."""
        aborts = []
        for session in sessions:
            abort = pb.DaemonMessage(abort=pb.Abort(load_id=version.load_id))
            aborts += self._instructions.post(session, abort)
        await finish(aborts)

    async def _provide_files(self, version: LibraryVersion, session: InterpreterSession) -> str:
        """Make the files of an upload available to an interpreter's import.

        Returns their folder; "" if the interpreter has a copy of its own.
        """
        source = version.source
        if session.shares_files:
            folder = await asyncio.to_thread(self._store.unpack, source.sha256, source.label)
            return str(folder)
        path = await asyncio.to_thread(self._store.get_path, source.sha256)
        fetch = pb.Fetch(sha256=source.sha256, filename=source.label, size=path.stat().st_size)
        # Without a timeout: the interpreter itself gives up when the transfer stalls.
        checked_answer(await session.post(pb.DaemonMessage(fetch=fetch)))
        return ""
