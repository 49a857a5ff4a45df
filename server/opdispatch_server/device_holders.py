"""Which interpreters can have arrays on which devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opdispatch.errors import DeviceError
from opdispatch_server.interpreter_session import InterpreterSession
from opdispatch_server.interpreter_sessions import InterpreterSessions
from opdispatch_server.library_version import LibraryVersion
from opdispatch_server.placement import has_device


class DeviceHolders:
    """What interpreters say of themselves, and what their libraries bring along.

    Of the devices of a library's backend only the type is known here. Belongs to the event loop.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        versions: Callable[[], Iterable[LibraryVersion]],
        is_draining: Callable[[InterpreterSession], bool],
    ) -> None:
        self._sessions = sessions
        self._versions = versions
        self._is_draining = is_draining

    def can_have(self, devices: Iterable[str]) -> Callable[[InterpreterSession], bool]:
        """Whether an interpreter has backends for all of these devices; every one has the host's.

        A device without a number is any of its type.
        """
        wanted = {each for each in devices if each.partition(":")[0] != "cpu"}
        registered = {each: self._with_libraries_for(each.partition(":")[0]) for each in wanted}
        return lambda session: all(
            has_device(session, each) or session in registered[each] for each in wanted
        )

    def absence(self, device: str) -> DeviceError:
        """The error of a device that no interpreter has: it says what they have."""
        known = ", ".join(
            f"{session.name} ({', '.join(self._names_of(session))}"
            f"{'; draining' if self._is_draining(session) else ''})"
            for session in self._sessions.ready()
        )
        return DeviceError(
            f"no interpreter has the device {device[:60]!r}; connected: {known}",
            device=device[:60],
        )

    def _names_of(self, session: InterpreterSession) -> list[str]:
        kinds = {
            kind
            for version in self._versions()
            if version.find_replica(session) is not None
            for kind in version.batch.device_types
        }
        own = {each.partition(":")[0] for each in session.devices}
        return [*session.devices, *sorted(kinds - own)]

    def _with_libraries_for(self, kind: str) -> set[InterpreterSession]:
        """Where libraries have brought a backend for that type."""
        return {
            replica.session
            for version in self._versions()
            if kind in version.batch.device_types
            for replica in version.replicas
        }
