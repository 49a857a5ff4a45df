"""Which processes a session can be opened in, of some that are forked from one another."""

from __future__ import annotations

import os

import pytest

from opdispatch_client.grpc_forks import GrpcForks
from opdispatch_wire.errors import DaemonUnavailableError

ADDRESS = "unix:///daemon.sock"


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)


def fork(monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)


def test_children_have_sessions_of_their_own(monkeypatch: pytest.MonkeyPatch):
    forks = GrpcForks()
    forks.note_use(ADDRESS, asyncio=False)
    fork(monkeypatch)
    for _ in range(2):
        forks.note_use(ADDRESS, asyncio=False)
        forks.note_use(ADDRESS, asyncio=True)
    fork(monkeypatch)  # a child of one that has had a session of asyncio
    assert forks.explain_child() == "has had a session of asyncio"


@pytest.mark.parametrize("asyncio", [False, True])
def test_child_of_an_asyncio_parent_cannot_open_a_session(
    monkeypatch: pytest.MonkeyPatch, asyncio: bool
):
    forks = GrpcForks()
    forks.note_use(ADDRESS, asyncio=True)
    forks.note_use(ADDRESS, asyncio=False)
    fork(monkeypatch)
    with pytest.raises(DaemonUnavailableError, match="has had a session of asyncio") as caught:
        forks.note_use(ADDRESS, asyncio=asyncio)
    assert "spawn" in caught.value.hint


@pytest.mark.parametrize("setting", ["0", "False", "no"])
def test_fork_is_refused_where_grpc_fork_support_is_disabled(
    monkeypatch: pytest.MonkeyPatch, setting: str
):
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", setting)
    forks = GrpcForks()
    forks.note_use(ADDRESS, asyncio=False)
    forks.note_use(ADDRESS, asyncio=False)
    fork(monkeypatch)
    with pytest.raises(DaemonUnavailableError, match="GRPC_ENABLE_FORK_SUPPORT=0"):
        forks.note_use(ADDRESS, asyncio=False)
