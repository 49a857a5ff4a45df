"""How long a lane takes to begin a call."""

import pytest

from opdispatch_server.serving.reading_turn import PATIENCE
from opdispatch_server.worker.incoming.lane_pace import LanePace, patience_on


def test_one_long_beginning_hardly_counts():
    pace = LanePace()
    for _ in range(3):
        pace.note_beginning(1e-4)
    assert pace.beginning == pytest.approx(1e-4)
    pace.note_beginning(1.0)  # another process had the core
    assert 1e-4 < pace.beginning < 2e-4


def test_kernels_are_slow_beside_what_it_takes_to_begin_them():
    pace = LanePace()
    assert pace.slow == 0
    pace.note_beginning(1e-3)
    assert pace.slow == pytest.approx(16e-3)


def test_company_is_expected_for_a_number_of_calls():
    pace = LanePace()
    assert not pace.company
    pace.note_company()
    assert pace.company > 1


def test_patience_has_bounds():
    assert patience_on(0.0) == PATIENCE
    assert PATIENCE < patience_on(1e-4) < patience_on(2e-4)
    assert patience_on(1.0) == patience_on(2.0)
