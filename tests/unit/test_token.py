"""Tokens: known by their hashes alone, for as long as they hold."""

from __future__ import annotations

import hmac
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.access import token as module
from opdispatch_server.access.roles import Role
from opdispatch_server.access.token import (
    TokenTable,
    dump_tokens,
    new_token,
    parse_lifetime,
    parse_tokens,
)
from opdispatch_wire.errors import UnauthenticatedError

NOW = 1_800_000_000.0


def test_a_token_is_known_until_it_expires():
    secret, record = new_token(Role.LOAD, ["image::*"], name="alice", expires=NOW + 60, now=NOW)
    table = TokenTable([record])
    identity = table.identify(secret, NOW + 59)
    assert (identity.role, identity.namespaces) == (Role.LOAD, ("image::*",))
    assert identity.name == f"token {record.id} (alice)"
    with pytest.raises(UnauthenticatedError, match=rf"token {record.id} \(alice\) has expired"):
        table.identify(secret, NOW + 60)
    assert table.holds(identity, NOW)
    assert not table.holds(identity, NOW + 60)
    assert not TokenTable().holds(identity, NOW)


def test_a_token_that_is_not_known_gets_one_sentence_whatever_is_wrong():
    secret, record = new_token(Role.CALL, now=NOW)
    other, _ = new_token(Role.CALL, now=NOW)
    table = TokenTable([record])
    id_of_another = f"opd1_{other.split('_')[1]}_{secret.split('_', 2)[2]}"
    wrong = ["", "x", secret[:-1], secret + "x", secret.upper(), other, id_of_another, "\udc80"]
    messages = set()
    for token in wrong:
        with pytest.raises(UnauthenticatedError) as caught:
            table.identify(token, NOW)
        messages.add((caught.value.message, caught.value.hint))
        assert not token or token not in str(caught.value)
    assert len(messages) == 1


def test_every_token_is_compared_once_by_hashes_of_one_length(monkeypatch: pytest.MonkeyPatch):
    lengths, compare_digest = [], hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        lengths.append((len(a), len(b)))
        return compare_digest(a, b)

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    secret, record = new_token(Role.CALL, now=NOW)
    table = TokenTable([record])
    table.identify(secret, NOW)
    for token in ("", "x" * 10_000, secret[:-1] + "!", new_token(Role.CALL, now=NOW)[0]):
        with pytest.raises(UnauthenticatedError):
            table.identify(token, NOW)
    assert lengths == [(32, 32)] * 5


def test_the_file_has_no_secret_and_gives_the_same_tokens_back():
    made = [
        new_token(Role.LOAD, ["image::*", "audio::[ab]*"], name="a b", expires=NOW + 5, now=NOW),
        new_token(Role.ADMIN, now=NOW),
    ]
    text = dump_tokens(TokenTable(record for _, record in made))
    assert not any(secret.split("_", 2)[2] in text for secret, _ in made)
    table = parse_tokens(text)
    assert table.records == {record.id: record for _, record in made}
    assert all(table.identify(secret, NOW).role is record.role for secret, record in made)


def test_two_tokens_differ_and_have_256_bits():
    secrets = {new_token(Role.CALL, now=NOW)[0] for _ in range(100)}
    assert len(secrets) == 100
    assert {len(secret.split("_", 2)[2]) for secret in secrets} == {43}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"\$.version"),
        ({"tokens": {}}, r"\$.tokens is not a list"),
        ({"tokens": [7]}, r"\$.tokens\[0\] is not an object"),
        ({"id": "../../x"}, "hexadecimal digits"),
        ({"role": "owner"}, "'owner' is not a role"),
        ({"role": "load", "namespaces": []}, "needs a namespace"),
        ({"namespaces": "image::*"}, "is not a list of globs"),
        ({"namespaces": ["a b"]}, "is not a glob"),
        ({"sha256": "00"}, "is not a SHA-256 digest"),
        ({"expires": 5}, "not a time"),
        ({"expires": "soon"}, "soon"),
        ({"name": "x\n"}, "cannot be the name"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(change: dict[str, object], message: str):
    _, record = new_token(Role.CALL, now=NOW)
    content = {"version": 1, "tokens": [record.to_json()]}
    target = content if change.keys() & content.keys() else content["tokens"][0]
    target.update(change)
    with pytest.raises(ValueError, match=message):
        parse_tokens(json.dumps(content))


def test_two_tokens_of_one_id_are_refused():
    _, record = new_token(Role.CALL, now=NOW)
    content = {"version": 1, "tokens": [record.to_json()] * 2}
    with pytest.raises(ValueError, match="two tokens with one id"):
        parse_tokens(json.dumps(content))


@given(st.integers(0, 400), st.text(max_size=30))
def test_a_file_that_is_cut_off_or_garbled_is_refused_and_never_believed(cut: int, tail: str):
    _, record = new_token(Role.CALL, now=NOW)
    text = dump_tokens(TokenTable([record]))
    garbled = text[:cut] + tail
    try:
        table = parse_tokens(garbled)
    except ValueError:
        return
    assert table.records.keys() <= {record.id}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30d", 2_592_000), ("12h", 43_200), ("15m", 900), ("5s", 5), ("never", math.inf)],
)
def test_lifetimes(text: str, seconds: float):
    assert parse_lifetime(text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "-1d", "30", "d", "1e3d", "30D", "٣d", "9999999d"])
def test_parse_lifetime_rejects_other_text(text: str):
    with pytest.raises(ValueError, match="is not a lifetime"):
        parse_lifetime(text)
