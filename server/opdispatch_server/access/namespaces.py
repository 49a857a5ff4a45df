"""Check that an identity may register, replace or remove the operators of a library."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from opdispatch_server.access.identity import Identity, how_to_get
from opdispatch_server.access.roles import Role, includes
from opdispatch_wire.errors import PermissionDeniedError


def check_registrations(
    identity: Identity,
    library: str,
    operators: Iterable[str],
    namespaces: Iterable[str] = (),
    *,
    has_fallbacks: bool = False,
    device_types: Iterable[str] = (),
) -> None:
    """Raise PermissionDeniedError unless ``identity`` may load a library with these registrations.

    ``operators`` are those that it defines or implements, as ``namespace::name.overload``;
    ``namespaces`` those that it claims as a whole. Fallbacks, and backends for devices, affect the
    calls of all libraries.
    """
    if includes(identity.role, Role.ADMIN):
        return
    identity.check_role(Role.LOAD, f"to change library {library!r}")
    if has_fallbacks:
        identity.check_role(Role.ADMIN, f"a fallback, which library {library!r} has,")
    if device := next(iter(device_types), ""):
        identity.check_role(Role.ADMIN, f"a backend for {device}, which library {library!r} has,")
    for namespace in namespaces:
        # A namespace as a whole requires a glob for all of its operators.
        if not is_covered(f"{namespace}::", identity.namespaces):
            raise _outside(identity, library, f"claims the namespace {namespace}", namespace)
    for operator in operators:
        if not is_covered(operator, identity.namespaces):
            namespace = operator.partition("::")[0]
            raise _outside(identity, library, f"registers {operator}", namespace)


def is_covered(name: str, globs: Iterable[str]) -> bool:
    """Return whether a glob matches an operator's name, with or without its overload name."""
    bare = name.partition(".")[0]
    return any(fnmatch.fnmatchcase(name, g) or fnmatch.fnmatchcase(bare, g) for g in globs)


def _outside(identity: Identity, library: str, does: str, namespace: str) -> PermissionDeniedError:
    globs = ", ".join(identity.namespaces)
    return PermissionDeniedError(
        f"library {library!r} {does}, and {identity.name} may register {globs}",
        hint=how_to_get(Role.LOAD, namespace),
        role=identity.role.value,
        needed=Role.LOAD.value,
        namespace=namespace,
    )
