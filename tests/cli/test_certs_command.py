"""``opdispatch certs``: a CA once, and certificates each time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opdispatch_client.cli import main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        raise SystemExit(main(list(words)))
    return int(caught.value.code or 0)


def test_the_authority_stays_and_the_rest_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "certs"
    assert run("certs", str(folder), "--host", "gpu1", "--client", "alice") == 0
    out = capsys.readouterr().out
    assert f"--tls-cert {folder}/server.pem --tls-key {folder}/server.key" in out
    names = ["alice.key", "alice.pem", "ca.key", "ca.pem", "server.key", "server.pem"]
    assert sorted(each.name for each in folder.iterdir()) == names
    assert {each.stat().st_mode & 0o777 for each in folder.glob("*.key")} == {0o600}
    before = {name: (folder / name).read_bytes() for name in names}
    assert run("certs", str(folder)) == 0
    after = {name: (folder / name).read_bytes() for name in names}
    changed = [name for name in names if before[name] != after[name]]
    assert changed == ["server.key", "server.pem"]


@pytest.mark.parametrize("name", ["ca", "server", "../x", "", "a b"])
def test_a_name_that_cannot_be_a_clients_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
):
    assert run("certs", str(tmp_path / "certs"), "--client", name) == 2
    assert "cannot be a client's name" in capsys.readouterr().err
    assert not (tmp_path / "certs").exists()


def test_the_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(
        sys.modules, "opdispatch_server.access.certificate_authority", raising=False
    )
    assert run("certs", str(tmp_path / "certs")) == 1
    assert "install opdispatch[certs]" in capsys.readouterr().err
