"""Namespaces: which libraries an identity may have, by what they register."""

from __future__ import annotations

import pytest

from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.namespaces import check_registrations, is_covered
from opdispatch_server.access.roles import Role
from opdispatch_wire.errors import PermissionDeniedError

ALICE = Identity("token 0123 (alice)", Role.LOAD, ("image::*", "audio::mix"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("image::sobel", True),
        ("image::sobel.out", True),
        ("image::", True),
        ("images::sobel", False),
        ("audio::mix", True),
        ("audio::mix.out", True),
        ("audio::", False),
        ("audio::cut", False),
        ("IMAGE::sobel", False),
    ],
)
def test_a_glob_covers_an_operator_with_all_its_overloads(name: str, expected: bool):
    assert is_covered(name, ALICE.namespaces) is expected


def test_a_library_within_its_globs_passes():
    check_registrations(ALICE, "filters", ["image::sobel", "audio::mix.out"], ["image"])


def test_an_operator_of_another_namespace_is_refused_by_name():
    with pytest.raises(PermissionDeniedError) as caught:
        check_registrations(ALICE, "filters", ["image::sobel", "bank::quote"])
    assert caught.value.message == (
        "library 'filters' registers bank::quote, and token 0123 (alice) may register image::*, "
        "audio::mix"
    )
    assert "--role load --namespace 'bank::*'" in caught.value.hint
    assert caught.value.facts["namespace"] == "bank"


def test_a_namespace_as_a_whole_needs_a_glob_for_all_of_it():
    with pytest.raises(PermissionDeniedError, match="claims the namespace audio"):
        check_registrations(ALICE, "mixer", ["audio::mix"], ["audio"])


def test_fallbacks_and_backends_need_admin():
    with pytest.raises(PermissionDeniedError, match=r"a fallback, which .* needs admin"):
        check_registrations(ALICE, "spy", [], has_fallbacks=True)
    with pytest.raises(PermissionDeniedError, match=r"a backend for npu, which .* needs admin"):
        check_registrations(ALICE, "npu", [], device_types=["npu"])


@pytest.mark.parametrize("identity", [OWNER, Identity("token 99", Role.ADMIN)])
def test_an_admin_and_the_daemons_user_may_register_anything(identity: Identity):
    check_registrations(
        identity, "spy", ["bank::quote"], ["bank"], has_fallbacks=True, device_types=["npu"]
    )


@pytest.mark.parametrize("role", [Role.CALL, Role.WORKER])
def test_other_roles_may_register_nothing(role: Role):
    with pytest.raises(PermissionDeniedError, match="needs load"):
        check_registrations(Identity("token 77", role), "filters", [])
