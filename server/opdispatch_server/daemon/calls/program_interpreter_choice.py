"""Choose the interpreter that runs a program or keeps new values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.arrays import split_device
from opdispatch.errors import DeviceError
from opdispatch_server.daemon.calls.program_plans import ProgramPlan
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.values.remote_part import RemotePart
from opdispatch_wire.errors import InterpreterNotFoundError


class ProgramInterpreterChoice:
    """Chooses among all interpreters. For use in the event loop only."""

    def __init__(self, sessions: InterpreterSessions, libraries: LibraryRegistry) -> None:
        self._sessions = sessions
        self._versions = libraries.catalog.newest
        self._placement = libraries.placement
        self._devices = libraries.devices

    def choose(
        self, plan: ProgramPlan, remote: RemotePart, name: str, inputs: Sequence[Any]
    ) -> InterpreterSession:
        """Return the interpreter that serves most steps; among equals, the one with most values.

        Only interpreters that can hold arrays on the devices of the inputs, and on the devices that
        the steps name, are considered. Raises InterpreterNotFoundError.
        """
        if name:
            return self._sessions.get_ready(name)
        devices = {str(getattr(each, "device", "cpu")).partition(":")[0] for each in inputs}
        homes, can_have = remote.homes, self._devices.can_have(devices)
        steps: dict[InterpreterSession, int] = {}
        for version, count in plan.libraries:
            for replica in version.replicas:
                if replica.is_serving:
                    steps[replica.session] = steps.get(replica.session, 0) + count
        candidates = steps.keys() or homes.keys()
        if not candidates:
            return self._choose_for_new(remote, can_have)
        if len(candidates) == 1:
            return next(iter(candidates))
        # A string argument counts as a device if any interpreter has one of that name.
        named = plan.program.devices
        devices.update(
            each for each in named if any(map(self._devices.can_have([each]), candidates))
        )
        can_have = self._devices.can_have(devices)
        return max(
            candidates,
            key=lambda session: (
                can_have(session),
                steps.get(session, 0),
                homes.get(session, 0),
                -session.calls_in_flight,
                -session.calls_total,
            ),
        )

    def choose_for_device(self, device: str, remote: RemotePart) -> InterpreterSession:
        """Return the interpreter for values on a device: one with values, else one for new values.

        Raises DeviceError if no interpreter has the device.
        """
        try:
            split_device(device)
        except DeviceError:
            raise self._placement.absence_of(device) from None
        can_have, homes = self._devices.can_have([device]), remote.homes
        for home in sorted(homes, key=lambda home: homes[home], reverse=True):
            if can_have(home):
                return home
        session = self._choose_for_new(remote, can_have)
        if not can_have(session):
            raise self._placement.absence_of(device)
        return session

    def _choose_for_new(
        self, remote: RemotePart, can_have: Callable[[InterpreterSession], bool]
    ) -> InterpreterSession:
        """Return the interpreter for values that exist nowhere yet.

        Prefers one that has their devices, then the one with most libraries, then the one that
        received the client's previous value. Raises InterpreterNotFoundError.
        """
        ready = [each for each in self._sessions.ready() if not self._placement.is_draining(each)]
        if not ready:
            raise InterpreterNotFoundError("there is no interpreter that could keep a value")
        libraries = dict.fromkeys(ready, 0)
        for version in self._versions():
            for replica in version.replicas:
                if replica.is_serving and replica.session in libraries:
                    libraries[replica.session] += 1
        return max(
            ready,
            key=lambda session: (
                can_have(session),
                libraries[session],
                session is remote.last_home,
                -session.calls_in_flight,
                -session.calls_total,
            ),
        )
