"""Identities of clients, with their roles and the operators that they may register."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from opdispatch_server.access.roles import Role, includes, may_call
from opdispatch_wire.errors import PermissionDeniedError

EVERYTHING: Final = ("*",)
USER: Final = "user "
"""The prefix of the name of an identity that is another user of the machine."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity. ``namespaces`` are globs for operator names, such as ``image::*``."""

    name: str
    """Shown in messages and logs; not a secret."""
    role: Role
    namespaces: tuple[str, ...] = EVERYTHING
    expires: float = math.inf
    """When it expires, as a time of ``time.time``."""
    token: str = ""
    """The id of its token; empty without one."""

    def check_may_call(self, method: str, least: str) -> None:
        """Raise PermissionDeniedError if its role does not allow a method that needs ``least``.

        ``method`` is as on the wire: ``/SERVICE/METHOD``.
        """
        if not may_call(self.role, method):
            name = method.rpartition("/")[2]
            raise PermissionDeniedError(
                f"{self.name} has the role {self.role}, and {name} needs {least}",
                hint=self._how_to_get(least),
                role=self.role.value,
                needed=least,
            )

    def check_role(self, least: Role, what: str) -> None:
        """Raise PermissionDeniedError if its role lacks ``least``, which ``what`` needs."""
        if not includes(self.role, least):
            raise PermissionDeniedError(
                f"{self.name} has the role {self.role}, and {what} needs {least}",
                hint=self._how_to_get(least),
                role=self.role.value,
                needed=least.value,
            )

    def _how_to_get(self, role: str) -> str:
        if self.name.startswith(USER) and role != Role.OWNER:
            name = self.name.removeprefix(USER)
            return f"ask who runs the daemon for `opdispatch serve --allow-user {name}={role}`"
        return how_to_get(role)


OWNER: Final = Identity("the daemon's user", Role.OWNER)
"""The daemon's user or root, as the system reports, and the daemon's own work."""


def how_to_get(role: str, namespace: str = "") -> str:
    """Return a hint on how to get a role, for operators of one namespace if given."""
    if role == Role.OWNER:
        return "ask as the daemon's user, at its unix socket"
    option = f" --namespace '{namespace}::*'" if namespace else ""
    return f"ask who runs the daemon for a token: `opdispatch token create --role {role}{option}`"
