"""The two names of a socket that another process may take the place of."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opdispatch_server.socket_names import own_name, published_name


def test_own_name_leads_back_to_the_published_one(tmp_path: Path):
    path = tmp_path / "daemon.sock"
    assert own_name(path).parent == tmp_path
    assert published_name(os.fsencode(own_name(path))) == os.fsencode(path)


@pytest.mark.parametrize(
    "path", [b"/run/daemon.sock", b"/run/.hidden", b"/run/.a.b", b"/.d.1/x", b"", b"\0abstract"]
)
def test_any_other_name_is_the_only_one(path: bytes):
    assert published_name(path) == path
