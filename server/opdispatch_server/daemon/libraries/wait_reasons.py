"""Describe what a library waits for, in listings and to callers of ``scale``."""

from __future__ import annotations

from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.placement import Placement
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState


class LibraryWaits:
    """Describes what versions wait for. For use in the event loop only."""

    def __init__(self, pools: InterpreterPools, placement: Placement) -> None:
        self._pools = pools
        self._placement = placement

    def describe(self, version: LibraryVersion) -> str:
        """Return what a version waits for; "" if it is in as many interpreters as it should be."""
        if version.state not in (VersionState.ACTIVE, VersionState.WAITING):
            return ""
        missing = version.interpreters_wanted - sum(each.is_serving for each in version.replicas)
        if missing <= 0:
            return ""
        some = "an interpreter" if missing == 1 else f"{missing} interpreters"
        if version.replicas:
            some = f"{missing} more interpreter{'s' * (missing > 1)}"
        return f"{some}: {self._explain(version)}"

    def _explain(self, version: LibraryVersion) -> str:
        problem, hint = self._pools.explain_want(version.pool)
        if problem and (version.pool is not None or version.source.home.is_shared):
            return f"{problem}; {hint}"
        spare = self._placement.find_spare(version)
        if any(session.loading for session in spare):
            busy = next(session for session in spare if session.loading)
            return f"{busy.name} is importing {busy.importing or 'something'}"
        if version.failed_attempts:
            return f"it could not be imported there ({version.failed_attempts} attempts)"
        if spare:
            return f"{spare[0].name} is about to import it"
        if self._placement.is_coming():
            return "one is being started"
        device = f" with {version.device}" if version.device else ""
        return f"there is no other one{device} that takes libraries"
