"""One version of one loaded library, as the daemon knows it."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from opdispatch import Registration
from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.libraries.counted_calls import CountedCalls
from opdispatch_server.daemon.libraries.replica import Replica, ReplicaState
from opdispatch_server.daemon.processes.interpreter_pool import InterpreterPool
from opdispatch_wire.v1 import interpreter_pb2, registry_pb2

if TYPE_CHECKING:
    from opdispatch_server.daemon.interpreters.session import InterpreterSession


class VersionState(enum.Enum):
    """The state of a version."""

    LOADING = "loading"  # not published yet
    ACTIVE = "active"  # new calls use it
    KEPT = "kept"  # below a newer version, which it can replace again
    WAITING = "waiting"  # is to be active, but has no interpreter at the moment
    FAILED = "failed"  # is to be active, but could not be loaded again
    GONE = "gone"


class LibraryVersion(CountedCalls):
    """A version, its registrations in the daemon's dispatcher, and its replicas.

    Every replica registers the same batch, so a kernel has the same index under the same
    ``load_id`` in each of them. Changed in the event loop only, except by ``take_batch`` and
    ``let_go``: they run in a thread, before the version is published and after it has gone. Other
    threads may read.
    """

    def __init__(
        self,
        name: str,
        version: int,
        load_id: int,
        source: LibrarySource,
    ) -> None:
        super().__init__()
        self.name = name
        self.version = version
        self.load_id = load_id
        self.source = source
        self.state = VersionState.LOADING
        # In the order in which they joined. The first is the primary.
        self.replicas: list[Replica] = []
        # How many there are to be, on which type of device ("" for any), and who asked for it.
        self.interpreters_wanted = 1
        self.device = ""
        self.loaded_by = ""
        # The interpreters that may hold it; None: the shared ones.
        self.pool: InterpreterPool | None = None
        self.batch = interpreter_pb2.RegistrationBatch()
        # The serialized DaemonMessage with a Mirror of the batch alone: every interpreter that does
        # not hold the version is sent the same bytes.
        self.mirrored_batch = b""
        self.registrations: list[Registration] = []
        # The operators that it defines or implements, sorted.
        self.operators: Sequence[str] = ()
        self._operators: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()  # without overload names
        self.handles: list[RegistrationHandle] = []
        # Whether it has a fallback: kernels for all operators of a dispatch key.
        self.has_fallbacks = False
        # Why it could not be loaded again, if it has failed.
        self.error = ""
        self.loaded_at = datetime.now(UTC)
        # Its position among all publications: of several kernels for one slot, the last published
        # wins.
        self.position = 0
        # Consecutive failures: imports that brought their interpreters down, replicas that failed.
        self.failed_attempts = 0
        # No replica is tried before this time of ``time.monotonic``.
        self.rests_until = 0.0
        self.times_given_up = 0
        # Held while replicas are added, so that only one task decides how many are missing.
        self.filling = asyncio.Lock()
        self.kernel_errors: Counter[str] = Counter()
        """How many calls of each operator its kernels have failed."""

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"

    def start_over(self, load_id: int) -> None:
        """Start over without interpreters: it will be loaded anew, under that id."""
        self.load_id = load_id
        self.replicas = []

    def take_batch(
        self, batch: interpreter_pb2.RegistrationBatch, registrations: list[Registration]
    ) -> None:
        """Store the registrations that its import made."""
        self.let_go()
        self.batch = batch
        mirror = interpreter_pb2.Mirror(batch=batch)
        self.mirrored_batch = interpreter_pb2.DaemonMessage(mirror=mirror).SerializeToString()
        self.registrations = registrations
        names = {r.schema.name if r.schema is not None else r.name for r in registrations}
        self.expect(
            tuple(sorted(str(name) for name in names if name is not None)),
            has_fallbacks=any(r.kind == "fallback" for r in registrations),
        )

    def let_go(self) -> None:
        """Drop its registrations, which are no longer needed, one by one in a thread."""
        while self.registrations:
            self.registrations.pop()

    def expect(self, operators: Sequence[str], *, has_fallbacks: bool) -> None:
        """Set the operators that it registers, or registered the last time."""
        self.operators = operators
        self._operators = frozenset(operators)
        self._names = frozenset(operator.partition(".")[0] for operator in operators)
        self.has_fallbacks = has_fallbacks

    def has_operator(self, name: str) -> bool:
        """Return whether it defines or implements the operator."""
        return name in self._operators

    def shares_names_with(self, other: LibraryVersion) -> bool:
        """Return whether it matters in which order the two are published.

        It does if they have kernels for one slot, or overloads of one name.
        """
        return not self._names.isdisjoint(other._names) or (
            self.has_fallbacks and other.has_fallbacks
        )

    @property
    def interpreter(self) -> InterpreterSession | None:
        """The primary; None if no interpreter holds the version."""
        return self.replicas[0].session if self.replicas else None

    def find_replica(self, session: InterpreterSession) -> Replica | None:
        """Return the replica in that interpreter."""
        return next((r for r in self.replicas if r.session is session), None)

    def add_replica(self, session: InterpreterSession, state: ReplicaState) -> Replica:
        """Add an interpreter that holds the version; the first one becomes the primary."""
        replica = Replica(session, state)
        self.replicas.append(replica)
        return replica

    def remove_replica(self, session: InterpreterSession) -> bool:
        """Remove an interpreter that no longer holds the version; return whether it did."""
        before = len(self.replicas)
        self.replicas = [r for r in self.replicas if r.session is not session]
        return len(self.replicas) < before

    def count_wanted_or_held(self) -> int:
        """Return how many replicas are wanted, or how many are held, if more.

        Interpreters that a caller named count as wanted.
        """
        staying = [r for r in self.replicas if r.state is not ReplicaState.LEAVING]
        return max(self.interpreters_wanted, len(staying))

    @property
    def max_concurrency(self) -> int:
        """How many client calls of it one interpreter runs at a time."""
        return max(self.batch.max_concurrency, 1)

    @property
    def is_active(self) -> bool:
        """Whether new calls use it."""
        return self.state is VersionState.ACTIVE

    @property
    def is_serving(self) -> bool:
        """Whether it is active in a live interpreter."""
        return self.is_active and any(replica.is_serving for replica in self.replicas)

    def become_active(self) -> None:
        """Become active: its registrations have been published."""
        self.state = VersionState.ACTIVE
        self.error = ""
        self.failed_attempts = self.times_given_up = 0
        self.rests_until = 0.0

    async def wait_idle(self) -> None:
        """Wait until none of its calls is running, by whichever path they came."""
        await super().wait_idle()
        direct = [r.session.wait_for_direct_calls(self.load_id) for r in self.replicas]
        await asyncio.gather(*direct)

    def to_proto(self) -> registry_pb2.Library:
        """Return the version as clients see it."""
        message = registry_pb2.Library(
            name=self.name,
            version=self.version,
            sha256=self.source.sha256,
            source=self.source.label,
            interpreters=[replica.session.name for replica in self.replicas],
            operators=self.operators,
            active=self.is_active,
            calls_in_flight=self.calls_in_flight,
            interpreters_wanted=self.interpreters_wanted,
            device=self.device,
            loaded_by=self.loaded_by,
            state=self.state.value,
            error=self.error,
            max_concurrency=self.max_concurrency,
            kernel_errors=self.kernel_errors.total(),
            home=None if self.source.home.is_shared else self.source.home.to_proto(),
        )
        message.loaded_at.FromDatetime(self.loaded_at)
        return message
