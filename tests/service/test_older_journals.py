"""Journals that earlier versions have written: each format's fixture is read by today's code.

A fixture is what ``opdispatch state export`` of that version wrote: library ``kept`` rolled back
from v3 to v2, ``array`` from a module, ``gone`` unloaded, and worker-2 drained. One that has been
released is never written again; a new format adds its own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opdispatch_server.daemon.state.archive import import_state
from opdispatch_server.daemon.state.journal_format import FORMAT
from tests.service.conftest import StartDaemon
from tests.service.running_daemon import wait_for

JOURNALS = Path(__file__).with_name("journals")


def test_every_format_has_its_fixture():
    expected = [f"format-{number}.zip" for number in range(1, FORMAT + 1)]
    assert sorted(path.name for path in JOURNALS.iterdir()) == expected


@pytest.mark.parametrize("fixture", sorted(JOURNALS.iterdir()), ids=lambda path: path.stem)
def test_daemon_serves_what_an_older_one_has_recorded(
    fixture: Path, start_daemon: StartDaemon, tmp_path: Path
):
    import_state(fixture, tmp_path / "state")
    daemon = start_daemon(workers=2)
    with daemon.connect() as session:
        np.testing.assert_array_equal(session.call("kept::f", np.ones(2)), [2, 2])
        np.testing.assert_array_equal(session.ops.array.add(np.ones(2), np.ones(2)), [2, 2])
        assert {each.name: each.version for each in session.libraries() if each.active} == {
            "array": 1,
            "kept": 2,
        }
        assert wait_for(
            lambda: {i.name: i.state for i in session.interpreters()}["worker-2"] == "drained"
        )
        session.rollback("kept")
        np.testing.assert_array_equal(session.call("kept::f", np.ones(2)), [3, 3])
