"""The error of an interpreter whose session has ended."""

from __future__ import annotations

from opdispatch_server.daemon.interpreters.session_end import SessionEnd


def test_error_names_the_interpreter_and_what_was_found_out_since():
    end = SessionEnd("w", 7)
    assert end.error().message == "interpreter w (pid 7) went away: its session ended"
    end.reason, end.by_itself = "its process exited with status 3", True
    error = end.error("calling a::b", started="no")
    assert error.message == (
        "interpreter w (pid 7) went away while calling a::b: its process exited with status 3"
    )
    assert error.facts == {"interpreter": "w", "started": "no", "ended_by": "itself"}
