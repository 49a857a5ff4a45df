"""Which interpreters can have arrays on which devices."""

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
    """The devices that interpreters report, and those that their libraries bring along.

    Of the devices of a library's backend only the type is known here. Belongs to the event loop.
    """

    def __init__(self, versions: Callable[[], Iterable[LibraryVersion]]) -> None:
        """Look up devices in ``versions``, which has the active version of each library."""
        self._versions = versions

    def can_have(self, devices: Iterable[str]) -> Callable[[InterpreterSession], bool]:
        """Return a test for interpreters with backends for all of these devices.

        All have the host's.

        A device without a number is any of its type.
        """
        wanted = {each for each in devices if each.partition(":")[0] != HOST}
        registered = {each: self._with_libraries_for(each.partition(":")[0]) for each in wanted}
        return lambda session: all(
            _has_itself(session, each) or session in registered[each] for each in wanted
        )

    def unable(
        self, version: LibraryVersion, devices: Collection[str]
    ) -> Collection[InterpreterSession]:
        """Return where the version is served without backends for all of the devices.

        Nowhere, if that is so of all: then one of them says best what is missing.
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
        """Return where calls for one of these devices may go, whatever the texts among their
        arguments.

        A text may name the device of the result: then none may, if interpreters differ in those
        that they have.
        """
        unable = self.unable(version, devices)
        serving = [replica.session for replica in version.replicas if replica.is_serving]
        names_one = any(takes_device(argument.type) for argument in op.schema.arguments)
        if names_one and len({frozenset(self.names_of(session)) for session in serving}) > 1:
            return []
        return [session for session in serving if session not in unable]

    def names_of(self, session: InterpreterSession) -> list[str]:
        """Return the interpreter's own devices, and the types of those that its libraries bring."""
        kinds = {
            kind
            for version in self._versions()
            if version.find_replica(session) is not None
            for kind in version.batch.device_types
        }
        own = {each.partition(":")[0] for each in session.devices}
        return [*session.devices, *sorted(kinds - own)]

    def _with_libraries_for(self, kind: str) -> set[InterpreterSession]:
        """Return where libraries have brought a backend for that type."""
        return {
            replica.session
            for version in self._versions()
            if kind in version.batch.device_types
            for replica in version.replicas
        }


def _has_itself(session: InterpreterSession, device: str) -> bool:
    return any(own == device or own.partition(":")[0] == device for own in session.devices)
