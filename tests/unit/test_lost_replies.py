"""Calls that an interpreter refuses because it can run no kernels."""

from __future__ import annotations

from typing import Any

import pytest

from opdispatch_server.daemon.calls.lost_replies import is_refused_as_unfit
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2


class Session:
    """Records what is noted of its interpreter."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []

    def note_unfit(self, problem: str, suspect: str = "") -> None:
        self.noted.append((problem, suspect))


@pytest.mark.parametrize(
    ("facts", "noted"),
    [
        ({"unfit": "no memory", "unfit_after": "lib::f"}, [("no memory", "lib::f")]),
        ({"unfit": "no memory"}, [("no memory", "")]),
        ({}, []),
    ],
)
def test_a_refusal_as_unfit_is_noted_of_the_interpreter(facts: dict[str, str], noted: Any):
    session: Any = Session()
    error = RefusedError("another one is to run it", **facts)
    reply = execution_pb2.CallReply(error=status_from_error(error))
    assert is_refused_as_unfit(reply, session) == bool(noted)
    assert session.noted == noted
