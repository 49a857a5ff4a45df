"""The wait for a daemon that is away: which failures it covers, for how long, how often."""

from __future__ import annotations

import math

import pytest

from opdispatch_client.daemon_wait import DaemonWait
from opdispatch_wire.errors import DaemonUnavailableError, QueueFullError, RefusedError
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.status import lost_connection_error, stopping_error

AWAY = DaemonUnavailableError("no daemon answers", hint="start one", daemon="away")
NOT_BEGUN = [
    AWAY,
    stopping_error("it never started"),
    RefusedError("the daemon is stopping; the call never started"),  # of an older daemon
    LaneClosedError("gone", was_sent=False),
]
MAY_HAVE_RUN = [lost_connection_error("here", "gone"), LaneClosedError("gone")]
OTHERS = [
    DaemonUnavailableError("the certificate is another one's", started="no"),
    RefusedError("busy"),
    QueueFullError("full"),
    ValueError("no"),
]


@pytest.mark.parametrize("error", NOT_BEGUN)
def test_a_request_that_never_began_is_tried_again_whatever_it_does(error: Exception):
    waiting = DaemonWait(60)
    assert 0 <= waiting.pause_after(error) < 1
    assert 0 < waiting.pause_after(error) < 1


def test_the_daemon_that_has_taken_over_is_asked_at_once():
    waiting, stopping = DaemonWait(60), stopping_error("it never started")
    assert waiting.pause_after(stopping) == 0
    assert waiting.pause_after(stopping) > 0


@pytest.mark.parametrize("error", MAY_HAVE_RUN)
def test_one_that_may_have_run_is_tried_again_only_where_that_does_no_harm(error: Exception):
    assert 0 < DaemonWait(60).pause_after(error, is_repeatable=True) < 1
    with pytest.raises(type(error)) as caught:
        DaemonWait(60).pause_after(error)
    assert caught.value is error


@pytest.mark.parametrize("error", OTHERS)
def test_other_errors_are_not_waited_for(error: Exception):
    with pytest.raises(type(error)) as caught:
        DaemonWait(60).pause_after(error, is_repeatable=True)
    assert caught.value is error


def test_pauses_grow_to_a_quarter_of_a_second():
    wait = DaemonWait(math.inf)
    pauses = [wait.pause_after(AWAY) for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.25


@pytest.mark.parametrize("wait", [DaemonWait(0), DaemonWait(60, -math.inf)])
def test_the_end_of_the_wait_raises_the_last_error(wait: DaemonWait):
    with pytest.raises(DaemonUnavailableError, match="no daemon answers") as caught:
        wait.pause_after(AWAY)
    assert caught.value.hint == "start one"


def test_the_error_says_for_how_long_was_waited_unless_nothing_was():
    wait = DaemonWait(60, -math.inf)
    with pytest.raises(DaemonUnavailableError, match=r"it was waited for .* s") as caught:
        wait.pause_after(AWAY)
    assert float(caught.value.facts["waited"]) < 60
    with pytest.raises(DaemonUnavailableError) as caught:
        DaemonWait(0).pause_after(AWAY)
    assert "waited" not in caught.value.facts
