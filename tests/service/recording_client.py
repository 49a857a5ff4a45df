"""A client that notes what it did, when, and what it was answered."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

import opdispatch_client as oc
from opdispatch_stress.linearizability import UNKNOWN, Operation
from tests.library_model import NOT_FOUND
from tests.service.libraries import constant

X = np.zeros(1)


class RecordingClient:
    """Operations on libraries of ``constant``, each with its entry in ``history``.

    A change that fails with an error of ``unclear`` may have taken effect, and a look that does has
    told nothing.
    """

    def __init__(
        self,
        session: oc.Session,
        folder: Path,
        unclear: tuple[type[oc.OpdispatchError], ...] = (),
    ) -> None:
        self.history: list[Operation] = []
        self._session = session
        self._folder = folder
        self._unclear = unclear
        folder.mkdir()

    def load(self, name: str, stamp: int) -> Any:
        path = self._folder / f"{name}.py"
        path.write_text(constant(stamp, namespace=name))

        def load() -> Any:
            library = self._session.load(path)
            return library.version, library.already_loaded

        return self._record(name, "load", stamp, load)

    def unload(self, name: str, number: int = 0) -> Any:
        def unload() -> Any:
            active = self._session.unload(name, version=number or None)
            return active.version if active else None

        return self._record(name, "unload", number, unload)

    def rollback(self, name: str) -> Any:
        return self._record(
            name, "rollback", None, lambda: self._session.rollback(name).active.version
        )

    def scale(self, name: str, interpreters: int) -> Any:
        return self._record(
            name,
            "scale",
            interpreters,
            lambda: self._session.scale(name, interpreters).version,
            changes=False,
        )

    def call(self, name: str) -> Any:
        return self._record(
            name, "call", None, lambda: self._session.call(f"{name}::get", X), changes=False
        )

    def list(self, name: str) -> Any:
        def versions() -> Any:
            found = self._session.libraries(all_versions=True)
            return tuple(library.version for library in found if library.name == name)

        return self._record(name, "list", None, versions, changes=False)

    def _record(
        self,
        name: str,
        kind: str,
        argument: Any,
        send: Callable[[], Any],
        *,
        changes: bool = True,
    ) -> Any:
        invoked = monotonic()
        try:
            response = send()
        except (oc.LibraryNotFoundError, oc.OperatorNotFoundError):
            response = NOT_FOUND
        except self._unclear:
            if changes:
                self.history.append(Operation(name, kind, argument, UNKNOWN, invoked, math.inf))
            return UNKNOWN
        self.history.append(Operation(name, kind, argument, response, invoked, monotonic()))
        return response
