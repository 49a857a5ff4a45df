"""Which interpreters can have arrays on which devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opdispatch_server.interpreter_session import InterpreterSession
from opdispatch_server.libraries.library_version import LibraryVersion


class DeviceHolders:
    """What interpreters say of themselves, and what their libraries bring along.

    Of the devices of a library's backend only the type is known here. Belongs to the event loop.
    """

    def __init__(self, versions: Callable[[], Iterable[LibraryVersion]]) -> None:
        """``versions`` has, of each library, the one that is active."""
        self._versions = versions

    def can_have(self, devices: Iterable[str]) -> Callable[[InterpreterSession], bool]:
        """Whether an interpreter has backends for all of these devices; every one has the host's.

        A device without a number is any of its type.
        """
        wanted = {each for each in devices if each.partition(":")[0] != "cpu"}
        registered = {each: self._with_libraries_for(each.partition(":")[0]) for each in wanted}
        return lambda session: all(
            _has_itself(session, each) or session in registered[each] for each in wanted
        )

    def names_of(self, session: InterpreterSession) -> list[str]:
        """The interpreter's own devices, and the types of those that its libraries bring."""
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


def _has_itself(session: InterpreterSession, device: str) -> bool:
    return any(own == device or own.partition(":")[0] == device for own in session.devices)
