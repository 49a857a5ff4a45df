"""Roles: each method has a row, and each role the methods of those below it."""

from __future__ import annotations

import pytest

from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.roles import (
    GRANTABLE,
    LEAST_ROLE,
    Role,
    includes,
    may_call,
    parse_role,
)
from opdispatch_wire.errors import PermissionDeniedError

CALL = "/opdispatch.v1.ExecutionService/Call"
LOAD = "/opdispatch.v1.RegistryService/LoadLibrary"
DRAIN = "/opdispatch.v1.RegistryService/DrainInterpreter"
SESSION = "/opdispatch.v1.InterpreterService/Session"
INFO = "/opdispatch.v1.RegistryService/GetServerInfo"


@pytest.mark.parametrize(
    ("role", "methods"),
    [
        (Role.CALL, {CALL, INFO}),
        (Role.LOAD, {CALL, INFO, LOAD}),
        (Role.ADMIN, {CALL, INFO, LOAD, DRAIN}),
        (Role.WORKER, {CALL, INFO, SESSION}),
        (Role.OWNER, {CALL, INFO, LOAD, DRAIN, SESSION}),
    ],
)
def test_a_role_may_call_its_methods_and_no_others(role: Role, methods: set[str]):
    assert {m for m in (CALL, INFO, LOAD, DRAIN, SESSION) if may_call(role, m)} == methods


def test_a_method_without_a_row_is_for_the_daemons_user_alone():
    assert [role for role in Role if may_call(role, "/opdispatch.v1.New/Method")] == [Role.OWNER]


def test_a_worker_includes_no_role_and_is_included_in_none():
    assert {r for r in GRANTABLE if includes(r, Role.WORKER)} == {Role.WORKER}
    assert {r for r in GRANTABLE if includes(Role.WORKER, r)} == {Role.WORKER}


def test_the_owners_role_is_given_to_no_token():
    with pytest.raises(
        ValueError, match="'owner' is not a role; expected one of call, load, admin"
    ):
        parse_role("owner")


def test_a_refusal_names_both_roles_and_how_to_get_the_one_that_is_needed():
    identity = Identity("token 0123 (alice)", Role.CALL)
    with pytest.raises(PermissionDeniedError) as caught:
        identity.check_may_call(LOAD, LEAST_ROLE[LOAD])
    error = caught.value
    assert error.message == "token 0123 (alice) has the role call, and LoadLibrary needs load"
    assert "token create --role load" in error.hint
    assert error.facts == {"role": "call", "needed": "load"}
    OWNER.check_may_call(LOAD, LEAST_ROLE[LOAD])
