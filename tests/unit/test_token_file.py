"""The file of tokens: read again when it changes, and believed only when it is whole."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from opdispatch_server.access.roles import Role
from opdispatch_server.access.token import TokenTable, dump_tokens, new_token
from opdispatch_server.access.token_file import TokenFile, change_tokens, read_tokens

NOW = 1_800_000_000.0


def add(path: Path, **options: object) -> tuple[str, str]:
    secret, record = new_token(Role.CALL, now=NOW, **options)
    change_tokens(path, lambda table: TokenTable([*table.records.values(), record]))
    return secret, record.id


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    add(path, name="first")
    return path


def test_a_change_is_taken_over_and_logged_without_its_secret(
    path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    file = TokenFile(path)
    assert not file.refresh()
    secret, number = add(path, name="alice")
    assert file.refresh()
    assert file.table.identify(secret, NOW).token == number
    change_tokens(path, lambda table: TokenTable())
    assert file.refresh()
    assert not file.table.records
    assert {record.event for record in caplog.records} == {"audit"}
    actions = [record.action for record in caplog.records]
    assert actions[0] == f"add token {number} (alice) with the role call"
    assert f"revoke token {number} (alice)" in actions[1:]
    assert len(actions) == 3
    assert {record.identity for record in caplog.records} == {str(path)}
    assert secret not in caplog.text


@pytest.mark.parametrize("content", ["", "{", '{"version": 1, "tokens": [{}]}', "\xff", None])
def test_a_file_that_is_half_written_or_gone_changes_nothing_and_is_logged_once(
    path: Path, content: str | None, caplog: pytest.LogCaptureFixture
):
    file = TokenFile(path)
    whole, before = path.read_bytes(), file.table
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content.encode("latin-1"))
    for _ in range(3):
        assert not file.refresh()
    assert file.table is before
    assert [record.event for record in caplog.records] == ["tokens_refused"]
    path.write_bytes(whole)
    file.refresh()
    assert file.table.records == before.records
    path.write_bytes(b"{")
    file.refresh()
    assert len(caplog.records) == 2


def test_every_cut_of_a_file_leaves_the_tokens_in_force(path: Path):
    file = TokenFile(path)
    before = file.table.records
    whole = path.read_bytes()
    for end in range(0, len(whole) - 1, 7):
        path.write_bytes(whole[:end])
        assert not file.refresh()
        assert file.table.records == before


def test_a_file_in_which_others_can_write_is_refused(path: Path):
    path.chmod(0o664)
    with pytest.raises(ValueError, match=r"only the daemon's user can write to, .* mode 0664"):
        TokenFile(path)
    with pytest.raises(ValueError, match="is not a regular file"):
        read_tokens(Path("/dev/null"))


def test_the_file_is_written_for_its_owner_alone_and_nothing_is_left_beside_it(path: Path):
    add(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "tokens.json",
        "tokens.json.lock",
    ]


def test_a_change_that_fails_leaves_the_file_as_it_was(path: Path):
    before = path.read_bytes()

    def fail(table: TokenTable) -> TokenTable:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        change_tokens(path, fail)
    assert path.read_bytes() == before
    assert len(os.listdir(path.parent)) == 2


def test_a_file_of_the_same_content_says_that_nothing_has_changed(path: Path):
    file = TokenFile(path)
    text = dump_tokens(file.table)
    path.unlink()
    path.write_text(text)
    assert not file.refresh()
