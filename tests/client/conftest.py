"""Sessions with a real daemon."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import opdispatch_client as oc
from tests.client.library import TEXT
from tests.service.running_daemon import RunningDaemon


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all, with the library `park` in it; its message limit is 1 MiB."""
    daemon = RunningDaemon(
        tmp_path_factory.mktemp("client"), "--max-message-bytes", str(1 << 20), workers=1
    )
    try:
        daemon.wait_until_ready()
        library = daemon.folder / "park.py"
        library.write_text(TEXT)
        with daemon.connect() as session:
            session.load(library)
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session of the test's own."""
    with daemon.connect() as session:
        yield session
