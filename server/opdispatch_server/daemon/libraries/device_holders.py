"""Which interpreters can hold arrays on which devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from opdispatch import OperatorHandle
from opdispatch.schema.types import DEVICE, OptionalType, SchemaType
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.libraries.version import LibraryVersion

HOST = "cpu"
"""The type of the device that every interpreter has."""


def takes_device(kind: SchemaType) -> bool:
    """Return whether an argument of that type names a device."""
    return (kind.element if isinstance(kind, OptionalType) else kind) == DEVICE


class DeviceHolders:
    """The devices that interpreters report, and those that their libraries provide.

    Of a device that a library's backend provides, only the type is known here. For use in the event
    loop only.
    """

    def __init__(self, versions: Callable[[], Iterable[LibraryVersion]]) -> None:
        """Look devices up in ``versions``, which returns the active version of each library."""
        self._versions = versions

    def can_have(self, devices: Iterable[str]) -> Callable[[InterpreterSession], bool]:
        """Return a predicate for interpreters that can hold arrays on all of these devices.

        Every interpreter has the host. A device without a number means any of its type.
        """
        wanted = {each for each in devices if each.partition(":")[0] != HOST}
        registered = {each: self._with_libraries_for(each.partition(":")[0]) for each in wanted}
        return lambda session: all(
            _has_itself(session, each) or session in registered[each] for each in wanted
        )

    def unable(
        self, version: LibraryVersion, devices: Collection[str]
    ) -> Collection[InterpreterSession]:
        """Return the interpreters that serve the version but lack one of the devices.

        Empty if all of them do: then the error of one of them explains best what is missing.
        """
        if not devices or len(version.replicas) < 2:
            return ()
        can_have = self.can_have(devices)
        serving = [replica.session for replica in version.replicas if replica.is_serving]
        unable = [session for session in serving if not can_have(session)]
        return unable if len(unable) < len(serving) else ()

    def find_targets(
        self, op: OperatorHandle, version: LibraryVersion, devices: Collection[str]
    ) -> list[InterpreterSession]:
        """Return the interpreters for calls for one of these devices, whatever their strings.

        A string argument may name the result's device: if interpreters differ in their devices, the
        list is empty.
        """
        unable = self.unable(version, devices)
        serving = [replica.session for replica in version.replicas if replica.is_serving]
        names_one = any(takes_device(argument.type) for argument in op.schema.arguments)
        if names_one and len({frozenset(self.names_of(session)) for session in serving}) > 1:
            return []
        return [session for session in serving if session not in unable]

    def names_of(self, session: InterpreterSession) -> list[str]:
        """Return the interpreter's own devices, and the types that its libraries provide."""
        kinds = {
            kind
            for version in self._versions()
            if version.find_replica(session) is not None
            for kind in version.batch.device_types
        }
        own = {each.partition(":")[0] for each in session.devices}
        return [*session.devices, *sorted(kinds - own)]

    def _with_libraries_for(self, kind: str) -> set[InterpreterSession]:
        """Return the interpreters whose libraries provide a backend for that type."""
        return {
            replica.session
            for version in self._versions()
            if kind in version.batch.device_types
            for replica in version.replicas
        }


def _has_itself(session: InterpreterSession, device: str) -> bool:
    return any(own == device or own.partition(":")[0] == device for own in session.devices)
