"""Other users of the machine, as the option names them."""

from __future__ import annotations

import os
import pwd

import pytest

from opdispatch_server.access.identity import Identity
from opdispatch_server.access.roles import LEAST_ROLE, Role, may_call
from opdispatch_server.access.users import find_user, parse_users, stranger
from opdispatch_wire.errors import PermissionDeniedError

SELF = pwd.getpwuid(os.getuid()).pw_name


def test_users_have_the_roles_and_globs_that_are_named():
    assert parse_users([f"{SELF}=call", "4242=load:image::*,audio::mix"]) == {
        os.getuid(): Identity(f"user {SELF}", Role.CALL),
        4242: Identity("user 4242", Role.LOAD, ("image::*", "audio::mix")),
    }
    assert find_user(SELF) == find_user(str(os.getuid())) == os.getuid()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice", "is not USER=ROLE"),
        ("=call", "is not USER=ROLE"),
        ("4242=", "is not a role"),
        ("4242=owner", "is not a role"),
        ("4242=none", "is not a role"),
        ("4242=load", "needs namespaces"),
        ("4242=call:image::*", "needs namespaces"),
        ("no such user=call", "there is no user 'no such user'"),
    ],
)
def test_parse_users_rejects_malformed_entries(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse_users([text])


def test_one_user_has_one_role():
    with pytest.raises(ValueError, match="user 4242 has two roles"):
        parse_users(["4242=call", "4242=admin"])


def test_a_stranger_may_do_nothing_and_hears_how_that_changes():
    assert not any(may_call(Role.NONE, method) for method in LEAST_ROLE)
    with pytest.raises(PermissionDeniedError) as caught:
        stranger(4242).check_may_call("/a/GetServerInfo", "call")
    assert caught.value.message == "user 4242 has the role none, and GetServerInfo needs call"
    assert "serve --allow-user 4242=call" in caught.value.hint
