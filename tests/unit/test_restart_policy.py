"""Whether and when the process of an interpreter is restarted."""

import pytest

from opdispatch_server.daemon.processes.restart_policy import (
    FIRST_PAUSE,
    HEALTHY_AFTER,
    LONGEST_PAUSE,
    SHORTEST_PAUSE,
    START_ATTEMPTS,
    WorkerEnd,
    WorkerRecord,
    pause_after,
    why_not_again,
)
from opdispatch_server.device_discovery import NO_DEVICE_STATUS

DIED = WorkerEnd("was killed", 100.0, -9)


def test_pauses_double_while_the_process_dies_early():
    record = WorkerRecord()
    pauses = [pause_after(record, DIED) for _ in range(9)]
    assert pauses[0] == FIRST_PAUSE
    assert pauses[1:7] == [2 * each for each in pauses[:6]]
    assert pauses[-2:] == [LONGEST_PAUSE] * 2
    assert record.early_deaths == 9


def test_pause_is_short_after_a_healthy_process():
    record = WorkerRecord(early_deaths=3, pause=4.0, ready_at=DIED.at - HEALTHY_AFTER - 1)
    assert pause_after(record, DIED) == SHORTEST_PAUSE
    assert record.early_deaths == 0
    record.ready_at = DIED.at - HEALTHY_AFTER
    assert pause_after(record, DIED) == FIRST_PAUSE


def test_excused_death_is_not_counted():
    record = WorkerRecord(early_deaths=3, pause=4.0, excused=True)
    assert pause_after(record, DIED) == SHORTEST_PAUSE
    assert record.early_deaths == 3


@pytest.mark.parametrize(
    ("was_ready", "limit", "deaths"), [(False, None, START_ATTEMPTS), (True, 2, 2), (False, 2, 2)]
)
def test_process_is_quarantined_after_early_deaths(was_ready, limit, deaths):
    record = WorkerRecord(was_ready=was_ready, early_deaths=deaths - 1)
    assert why_not_again(record, DIED, limit) == ""
    record.early_deaths = deaths
    assert f"it died {deaths} times in a row" in why_not_again(record, DIED, limit)


@pytest.mark.parametrize(("was_ready", "limit"), [(True, None), (False, 0)])
def test_process_is_restarted_without_limit(was_ready, limit):
    record = WorkerRecord(was_ready=was_ready, early_deaths=1000)
    assert why_not_again(record, DIED, limit) == ""


def test_process_without_its_device_is_quarantined_at_once():
    end = WorkerEnd("exited", 100.0, NO_DEVICE_STATUS)
    record = WorkerRecord(tail=("starting", "ERROR cuda:0 is not there"))
    assert why_not_again(record, end, None) == "cuda:0 is not there"
    record.was_ready = True
    assert why_not_again(record, end, None) == ""
