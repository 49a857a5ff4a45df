"""The roles, and the lowest role that each method of each service requires."""

from __future__ import annotations

import enum
from typing import Final


class Role(enum.StrEnum):
    """A role. ``admin`` includes ``load``, and this ``call``; ``worker`` is separate."""

    CALL = "call"
    LOAD = "load"
    ADMIN = "admin"
    WORKER = "worker"
    OWNER = "owner"
    """The daemon's user, who may do everything. Tokens and other users cannot have it."""
    NONE = "none"
    """Another user of the machine, without permissions."""


GRANTABLE: Final = (Role.CALL, Role.LOAD, Role.ADMIN, Role.WORKER)
"""The roles that can be granted to a token, or to another user."""

_EXECUTION = "/opdispatch.v1.ExecutionService"
_INTERPRETER = "/opdispatch.v1.InterpreterService"
_REGISTRY = "/opdispatch.v1.RegistryService"
_HEALTH = "/grpc.health.v1.Health"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection"

LEAST_ROLE: Final[dict[str, Role]] = {
    f"{_EXECUTION}/Call": Role.CALL,
    f"{_EXECUTION}/CallStream": Role.CALL,
    f"{_EXECUTION}/HoldValues": Role.CALL,
    f"{_REGISTRY}/GetServerInfo": Role.CALL,
    f"{_REGISTRY}/ListLibraries": Role.CALL,
    f"{_REGISTRY}/ListInterpreters": Role.CALL,
    f"{_REGISTRY}/ListOperators": Role.CALL,
    f"{_REGISTRY}/DescribeOperator": Role.CALL,
    f"{_REGISTRY}/GetDispatchTable": Role.CALL,
    f"{_REGISTRY}/WaitForDef": Role.CALL,
    f"{_REGISTRY}/WaitForImpl": Role.CALL,
    f"{_REGISTRY}/WatchRegistry": Role.CALL,
    f"{_REGISTRY}/LoadLibrary": Role.LOAD,
    f"{_REGISTRY}/LoadLibraryWithProgress": Role.LOAD,
    f"{_REGISTRY}/UploadLibrary": Role.LOAD,
    f"{_REGISTRY}/UnloadLibrary": Role.LOAD,
    f"{_REGISTRY}/ScaleLibrary": Role.LOAD,
    f"{_REGISTRY}/RollbackLibrary": Role.LOAD,
    f"{_REGISTRY}/DrainInterpreter": Role.ADMIN,
    f"{_REGISTRY}/ReviveInterpreter": Role.ADMIN,
    f"{_REGISTRY}/CheckInvariants": Role.ADMIN,
    f"{_INTERPRETER}/Session": Role.WORKER,
    f"{_INTERPRETER}/FetchLibrary": Role.WORKER,
    f"{_HEALTH}/Check": Role.CALL,
    f"{_HEALTH}/Watch": Role.CALL,
    f"{_HEALTH}/List": Role.CALL,
    f"{_REFLECTION}/ServerReflectionInfo": Role.CALL,
}
"""Only the daemon's user can call a method that is not listed."""

# An interpreter reads the message limit before it joins, and its kernels call operators.
_OF_WORKERS: Final = frozenset(
    (f"{_REGISTRY}/GetServerInfo", f"{_EXECUTION}/Call", f"{_EXECUTION}/CallStream")
)

_ROLES_WITH: Final[dict[Role, frozenset[Role]]] = {
    Role.CALL: frozenset((Role.CALL, Role.LOAD, Role.ADMIN)),
    Role.LOAD: frozenset((Role.LOAD, Role.ADMIN)),
    Role.ADMIN: frozenset((Role.ADMIN,)),
    Role.WORKER: frozenset((Role.WORKER,)),
}

ALLOWED: Final = frozenset(
    (role, method)
    for method, least in LEAST_ROLE.items()
    for role in GRANTABLE
    if role in _ROLES_WITH[least] or (role is Role.WORKER and method in _OF_WORKERS)
)
"""All permitted pairs of a role and a method."""


def may_call(role: Role, method: str) -> bool:
    """Return whether a role may call a method, named as on the wire: ``/SERVICE/METHOD``."""
    return (role, method) in ALLOWED or role is Role.OWNER


def includes(role: Role, least: Role) -> bool:
    """Return whether a role includes ``least``, one of GRANTABLE."""
    return role is Role.OWNER or role in _ROLES_WITH[least]


def parse_role(text: str) -> Role:
    """Return the role of that name. Raises ValueError for one that cannot be granted."""
    if text in GRANTABLE:
        return Role(text)
    raise ValueError(f"{text[:40]!r} is not a role; expected one of {', '.join(GRANTABLE)}")
