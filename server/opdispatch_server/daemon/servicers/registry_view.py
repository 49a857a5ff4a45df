"""The registry as clients see it: replies built from the dispatcher and the libraries."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from opdispatch import Dispatcher, DispatchKey, OperatorHandle, OperatorName, Registration
from opdispatch.errors import OperatorNotFoundError, SchemaError
from opdispatch.keys.dispatch_key import to_functionality_key
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_server.daemon.processes.supervisor import Supervisor
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_wire.errors import WireError
from opdispatch_wire.v1 import registry_pb2 as pb

# How many of an interpreter's last output lines are shown; the log has more.
LINES_SHOWN = 20
LINE_SHOWN = 500
# The time of Python's fnmatch may grow with the square of the length.
LONGEST_PATTERN = 1000
_AT_ONCE = 1000
# The functionalities of arrays; the others process a call before it reaches one of these.
_LAYOUTS = frozenset(
    {
        DispatchKey.Dense,
        DispatchKey.Sparse,
        DispatchKey.SparseCsr,
        DispatchKey.Quantized,
        DispatchKey.NestedTensor,
    }
)


class OperatorRow(NamedTuple):
    """One operator, and the object by which a change is noticed."""

    summary: pb.OperatorSummary
    state: object
    """The operator's published state, which is a new object after each change."""


class RegistryView:
    """Builds replies, changing nothing. Any thread may call it while the registry changes."""

    def __init__(
        self,
        operators: OperatorRegistry,
        libraries: LibraryRegistry,
        sessions: InterpreterSessions,
        supervisor: Supervisor,
        queues: InterpreterQueues,
        values: RemoteValueTable,
        blame: Blame,
    ) -> None:
        self._operators = operators
        self._catalog = libraries.catalog
        self._library_to_proto = libraries.to_proto
        self._placement = libraries.placement
        self._sessions = sessions
        self._supervisor = supervisor
        self._queues = queues
        self._values = values
        self._blame = blame

    @property
    def _dispatcher(self) -> Dispatcher:
        return self._operators.dispatcher

    @property
    def epoch(self) -> int:
        """The epoch of the dispatcher: the number of publications so far."""
        return self._dispatcher.epoch

    @property
    def operators(self) -> int:
        """The number of registered operators."""
        return len(self._dispatcher.operators())

    def list_libraries(self, *, all_versions: bool) -> pb.ListLibrariesReply:
        """Return the libraries, in order of name and version."""
        versions = self._catalog.all_versions() if all_versions else self._catalog.newest()
        return pb.ListLibrariesReply(libraries=[self._library(version) for version in versions])

    def _library(self, version: LibraryVersion) -> pb.Library:
        message = self._library_to_proto(version)
        if version.state is not VersionState.KEPT and not self._blame.is_quiet:
            message.trouble = self._blame.trouble_of(version.name, version.operators)
        return message

    def list_interpreters(self) -> pb.ListInterpretersReply:
        """Return the interpreters for libraries, and quarantined ones, in order of name."""
        found = {session.name: self.interpreter(session) for session in self._sessions.ready()}
        found |= {name: self._quarantined(name) for name in self._supervisor.quarantined()}
        return pb.ListInterpretersReply(interpreters=[found[name] for name in sorted(found)])

    def list_operators(self, pattern: str) -> bytes:
        """Return the operators whose names match a shell pattern or contain a string, sorted.

        Returns a serialized ListOperatorsReply, because serializing many operators takes long, and
        blocks the interpreter lock.

        Raises WireError for a pattern that is too long to be compared with many names.
        """
        if len(pattern) > LONGEST_PATTERN:
            raise WireError(
                f"$.pattern has {len(pattern)} characters; the limit is {LONGEST_PATTERN}"
            )
        if not any(wildcard in pattern for wildcard in "*?["):
            pattern = f"*{pattern}*"
        names = sorted(str(name) for name in self._dispatcher.operators())
        handles = [
            self._dispatcher.find_op(name) for name in names if fnmatch.fnmatchcase(name, pattern)
        ]
        errors = self._catalog.kernel_errors()
        summaries = [self._summary(handle, errors) for handle in handles if handle is not None]
        # The concatenated bytes of two messages are a message with the fields of both.
        return b"".join(
            pb.ListOperatorsReply(operators=summaries[i : i + _AT_ONCE]).SerializeToString()
            for i in range(0, len(summaries), _AT_ONCE)
        )

    def operator_rows(self, known: Mapping[str, OperatorRow]) -> dict[str, OperatorRow]:
        """Return all operators by name; one that has not changed is taken from ``known``.

        Without their counts of errors, which calls change.
        """
        libraries: dict[str, list[str]] = {}
        for version in self._catalog.newest():
            for name in version.operators:
                libraries.setdefault(name, []).append(version.name)
        rows = {}
        no_errors: Counter[str] = Counter()
        for operator in self._dispatcher.operators():
            name, op = str(operator), self._dispatcher.find_op(operator)
            if op is None:
                continue
            row, state = known.get(name), op.published_state
            if (
                row is None
                or row.state is not state
                or row.summary.libraries != libraries.get(name, [])
            ):
                row = OperatorRow(self._summary(op, no_errors, libraries.get(name, ())), state)
            rows[name] = row
        return rows

    def schemas_of(self, name: str) -> list[str]:
        """Return the schemas of the operators that a call by this name may mean.

        Empty if there is none, or the name is invalid.
        """
        names = self._dispatcher.overloads(name) or (name,)
        try:
            handles = [self._dispatcher.find_schema(each) for each in names]
        except SchemaError:
            return []
        return [str(handle.schema) for handle in handles if handle is not None]

    def summarize(self, name: OperatorName) -> pb.OperatorSummary:
        """Return one operator, as in a list. Raises OperatorNotFoundError."""
        return self._summary(self._get(str(name)), self._catalog.kernel_errors())

    def active_kernel(self, name: OperatorName, key: DispatchKey) -> pb.KernelSummary:
        """Return the newest kernel for exactly that key. Raises OperatorNotFoundError."""
        for kernel in self._get(str(name)).kernels():
            if kernel.key is key and kernel.active:
                return self._kernel(str(key), kernel.registration, active=True)
        raise OperatorNotFoundError(f"{name} has no {key} kernel", operator=str(name))

    def explain_waiting(self, operator: OperatorName, key: DispatchKey | None) -> tuple[str, str]:
        """Return which loads may register what a client waits for, and what else is known."""
        name = str(operator)
        loading = [
            f"library {session.importing} (being imported by {session.name})"
            for session in self._sessions.all()
            if session.importing
        ]
        if lost := self._catalog.find_waiting(name):
            loading.insert(0, f"library {lost}, which has lost its interpreter,")
        hint = self._catalog.explain_absence(name)
        op = self._dispatcher.find_op(operator)
        if op is not None and key is not None:
            keys = ", ".join(dict.fromkeys(str(kernel.key) for kernel in op.kernels()))
            hint = f"it has kernels for {keys or 'no key'}"
        elif overloads := self._dispatcher.overloads(operator.name):
            hint = f"defined are {', '.join(map(str, overloads))}; each is awaited by its own name"
        if not loading:
            return "a library that is not being loaded", hint or "load it, or look at the name"
        return " or ".join(loading), hint

    def describe_operator(self, name: str) -> pb.DescribeOperatorReply:
        """Return everything about one operator. Raises OperatorNotFoundError."""
        op = self._get(name)
        return pb.DescribeOperatorReply(
            summary=self._summary(op, self._catalog.kernel_errors()),
            documentation=_documentation(op),
            defined_at=op.defined_at,
            kernels=[
                self._kernel(str(key), registration, active)
                for key, registration, active in op.kernels()
            ],
            tags=op.tags,
        )

    def dispatch_table(self, name: str) -> pb.GetDispatchTableReply:
        """Return the computed table of one operator. Raises OperatorNotFoundError."""
        return pb.GetDispatchTableReply(
            rows=[
                pb.TableRow(
                    key=str(row.key),
                    kernel=row.registered_at,
                    reason=row.reason,
                    fallthrough=row.fallthrough,
                )
                for row in self._get(name).table_rows()
            ]
        )

    def check_queues(self) -> list[str]:
        """Return the violated invariants of queues and values. In the event loop only."""
        return self._queues.check_invariants() + self._values.check_invariants()

    def check_invariants(self) -> pb.CheckInvariantsReply:
        """Check the dispatcher's invariants, then the libraries against the dispatcher."""
        violations = self._dispatcher.check_invariants()
        for version in self._catalog.all_versions():
            violations += find_violations(version)
        return pb.CheckInvariantsReply(
            violations=violations, operators_checked=len(self._dispatcher.operators())
        )

    def _get(self, name: str) -> OperatorHandle:
        """Return the operator, defined or not.

        For a name without an overload, the first overload that exists.
        """
        op = self._dispatcher.find_op(parse_operator_name(name))
        if op is None and "." not in name:
            overloads = self._dispatcher.overloads(name)
            op = self._dispatcher.find_op(overloads[0]) if overloads else None
        if op is not None:
            return op
        raise OperatorNotFoundError(
            f"there is no operator {name}",
            hint=self._catalog.explain_absence(name) or self._dispatcher.not_found(name).hint,
            operator=name,
        )

    def _summary(
        self, op: OperatorHandle, errors: Counter[str], libraries: Collection[str] | None = None
    ) -> pb.OperatorSummary:
        name = str(op.name)
        kernels = op.kernels()
        if libraries is None:
            libraries = [v.name for v in self._catalog.newest() if v.has_operator(name)]
        return pb.OperatorSummary(
            name=name,
            schema=str(op.schema) if op.has_schema else "",
            libraries=libraries,
            keys=list(dict.fromkeys(str(kernel.key) for kernel in kernels)),
            kernel_errors=errors[name],
        )

    def _kernel(self, key: str, registration: Registration, active: bool) -> pb.KernelSummary:
        version = self._operators.find_owner(registration)
        return pb.KernelSummary(
            key=key,
            registered_at=registration.site,
            library=version.name if version else "",
            interpreter=version.interpreter.name if version and version.interpreter else "",
            fallthrough=registration.kernel is not None and registration.kernel.is_fallthrough,
            active=active,
        )

    def interpreter(self, session: InterpreterSession) -> pb.Interpreter:
        """Return one interpreter."""
        held = [v for v in self._catalog.all_versions() if v.find_replica(session)]
        queue = self._queues.find(session)
        kept, kept_bytes = self._values.count_at(session)
        direct = session.heartbeat
        message = pb.Interpreter(
            name=session.name,
            pid=session.pid,
            supervised=session.supervised,
            state=self._state(session, held),
            libraries=[str(version) for version in held],
            calls_in_flight=session.calls_in_flight + direct.direct_calls_in_flight,
            calls_total=session.calls_total + direct.direct_calls_total,
            python_version=session.python_version,
            devices=session.devices,
            calls_queued=queue.calls_queued if queue else 0,
            bytes_queued=queue.bytes_queued if queue else 0,
            remote_values=kept,
            remote_bytes=kept_bytes,
            transfers=direct.transfers,
            kernel_errors=session.kernel_errors_total,
            reserved_for=session.pool.reserved_for if session.pool else "",
        )
        message.connected_at.FromDatetime(session.connected_at)
        if session.lease is not None:
            message.heartbeat_age_seconds = session.lease.silence
        if session.supervised:
            self._add_record(message)
        message.trouble = session.unfit or session.busy
        if session.busy:
            message.busy_operators.extend(sorted(session.busy_operators))
        return message

    def _state(self, session: InterpreterSession, held: list[LibraryVersion]) -> str:
        if self._placement.is_draining(session):
            return "draining" if held or session.calls_in_flight else "drained"
        if session.unfit:
            return "unfit"
        if session.busy:
            return "busy"
        if session.name in self._blame.separation.cells:
            return "apart"
        return "loading" if session.loading else "ready"

    def _quarantined(self, name: str) -> pb.Interpreter:
        message = pb.Interpreter(name=name, supervised=True, state="quarantined")
        self._add_record(message)
        return message

    def _add_record(self, message: pb.Interpreter) -> None:
        """Add the supervisor's state of an interpreter that the daemon runs itself."""
        lines = self._supervisor.last_lines(message.name)[-LINES_SHOWN:]
        message.last_lines.extend(line[:LINE_SHOWN] for line in lines)
        if record := self._supervisor.record_of(message.name):
            message.restarts = record.restarts
            message.trouble = record.quarantine


def find_violations(version: LibraryVersion) -> list[str]:
    """Return descriptions of the violated invariants of one version."""
    wrong = []
    live = sum(handle.live for handle in version.handles)
    expected = len(version.registrations) if version.is_active else 0
    if live != expected:
        wrong.append(f"{version} has {live} registrations in force, expected {expected}")
    if version.is_active and not version.replicas:
        wrong.append(f"{version} is active, but in no interpreter")
    if len({replica.session for replica in version.replicas}) < len(version.replicas):
        wrong.append(f"{version} counts an interpreter twice")
    running = sum(replica.calls_in_flight for replica in version.replicas)
    if running > version.calls_in_flight:
        wrong.append(f"the replicas of {version} count {running} calls in flight in all")
    if version.calls_in_flight < 0:
        wrong.append(f"{version} counts {version.calls_in_flight} calls in flight")
    return wrong


def _documentation(op: OperatorHandle) -> str:
    """Return the docstring of the first kernel that has one, among those that compute results."""
    for key, registration, _ in op.kernels():
        if _calculates(key) and registration.kernel and registration.kernel.documentation:
            return registration.kernel.documentation
    return ""


def _calculates(key: DispatchKey) -> bool:
    """Return whether a kernel for ``key`` computes results.

    Others redispatch, and one for Meta returns only shapes.
    """
    if key.name == "Meta":
        return False
    return key.name.startswith("Composite") or to_functionality_key(key) in _LAYOUTS
