"""``opdispatch token``: the secret is shown once, and the file has only its hash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opdispatch_client.cli import main
from opdispatch_server.access.roles import Role
from opdispatch_server.access.token_file import read_tokens


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        raise SystemExit(main(list(words)))
    return int(caught.value.code or 0)


def test_a_token_is_created_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "tokens.json"
    monkeypatch.setenv("OPDISPATCH_TOKENS", str(path))
    options = ("--role", "load", "--namespace", "image::*", "--expires", "30d", "--name", "alice")
    assert run("token", "create", *options) == 0
    created = capsys.readouterr()
    secret = created.out.strip()
    assert secret not in created.err
    identity = read_tokens(path).identify(secret)
    assert (identity.role, identity.namespaces) == (Role.LOAD, ("image::*",))
    assert secret.split("_", 2)[2] not in path.read_text()

    assert run("token", "list") == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"{identity.token} load image::* until ")
    assert listed.endswith(" alice\n")
    assert run("token", "list", "--json") == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert (facts["id"], facts["role"], facts["name"]) == (identity.token, "load", "alice")
    assert "sha256" not in facts

    assert run("token", "revoke", identity.token) == 0
    assert not read_tokens(path).records
    assert run("token", "revoke", identity.token) == 1
    assert "has no token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("create", "--role", "owner"), 2, "'owner' is not a role"),
        (("create", "--role", "load"), 2, "the role load needs a namespace"),
        (("create", "--expires", "soon"), 2, "'soon' is not a lifetime"),
        (("create", "0123"), 2, "create takes no ID"),
        (("revoke",), 2, "revoke takes the ID of a token"),
        (("list",), 1, "No such file or directory"),
        (("revoke", "0123"), 1, "No such file or directory"),
    ],
)
def test_a_mistake_is_explained_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    message: str,
):
    path = tmp_path / "tokens.json"
    assert run("token", *words, "--tokens", str(path)) == code
    assert message in capsys.readouterr().err
    assert not path.exists()


def test_a_file_is_needed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPDISPATCH_TOKENS", raising=False)
    assert run("token", "list") == 2
    assert "set OPDISPATCH_TOKENS" in capsys.readouterr().err
