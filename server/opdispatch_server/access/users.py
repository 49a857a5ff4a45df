"""Other users of the machine who may use a daemon's unix sockets, and their roles."""

from __future__ import annotations

import pwd
from collections.abc import Iterable

from opdispatch_server.access.identity import EVERYTHING, USER, Identity
from opdispatch_server.access.roles import Role, parse_role


def parse_users(texts: Iterable[str]) -> dict[int, Identity]:
    """Return identities by user id, from texts such as ``alice=call`` or ``bob=load:image::*``.

    Globs for the role load are separated by commas. Raises ValueError.
    """
    users: dict[int, Identity] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        role_name, _, globs = rest.partition(":")
        if not name or not equals:
            raise ValueError(f"{text[:80]!r} is not USER=ROLE, such as alice=call")
        role = parse_role(role_name)
        namespaces = tuple(filter(None, globs.split(",")))
        if bool(namespaces) != (role is Role.LOAD):
            raise ValueError(
                f"{text[:80]!r}: the role load, and only it, needs namespaces; expected such as "
                f"{name}=load:image::*"
            )
        number = find_user(name)
        if number in users:
            raise ValueError(f"user {name} has two roles; expected one")
        users[number] = Identity(f"{USER}{name}", role, namespaces or EVERYTHING)
    return users


def find_user(name: str) -> int:
    """Return the id of a user given by name or id. Raises ValueError."""
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise ValueError(f"there is no user {name[:80]!r} on this machine") from None


def stranger(number: int) -> Identity:
    """Return the identity of a user without permissions."""
    try:
        name = pwd.getpwuid(number).pw_name
    except KeyError:
        name = str(number)
    return Identity(f"{USER}{name}", Role.NONE)
