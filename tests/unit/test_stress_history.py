"""The judge of races: it accepts what can have happened, and nothing else."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from opdispatch_stress.history import ABSENT, PRESENT, Read, Write, find_violations
from opdispatch_stress.library_text import check_answer, library_text
from opdispatch_stress.race_log import RaceLog
from opdispatch_stress.report import summarize


def _violations(writes, reads):
    """Times are (started, finished) of each event; all about one library."""
    return find_violations(
        [_write(*write) for write in writes],
        [Read("a", value, *times) for value, *times in reads],
    )


def _write(value, started, finished, certain=True):
    return Write("a", value, started, finished, certain)


ACCEPTED = {
    "the version that is loaded": ([(1, 0, 1)], [(1, 2, 3)]),
    "gone before the first load": ([(1, 2, 3)], [(ABSENT, 0, 1)]),
    "gone during the first load": ([(1, 2, 9)], [(ABSENT, 4, 5)]),
    "new during its own load": ([(1, 2, 9)], [(1, 4, 5)]),
    "old and new while replaced": ([(1, 0, 1), (2, 4, 8)], [(1, 5, 6), (2, 5, 6)]),
    "old if the call began before": ([(1, 0, 1), (2, 4, 8)], [(1, 3, 20)]),
    "gone after the unload": ([(1, 0, 1), (ABSENT, 2, 3)], [(ABSENT, 4, 5)]),
    "brought back": ([(1, 0, 1), (2, 2, 3), (1, 4, 5)], [(1, 6, 7)]),
    "a load that failed unclearly, used": ([(1, 0, None)], [(1, 8, 9)]),
    "a load that failed unclearly, unused": ([(1, 0, None)], [(ABSENT, 8, 9)]),
    "there, whatever the version": ([(1, 0, 1), (2, 2, 9)], [(PRESENT, 4, 5)]),
    "there while it is unloaded": ([(1, 0, 1), (ABSENT, 4, 9)], [(PRESENT, 5, 6)]),
    "a load that may have failed, used": ([(1, 0, 1, False)], [(1, 2, 3)]),
    "a load that may have failed, unused": ([(1, 0, 1, False)], [(ABSENT, 2, 3)]),
    "either of two loads at once": ([(1, 0, 5), (2, 0, 5)], [(1, 6, 7)]),
}
PLANTED = {
    "a load that may have failed, overwritten": (
        [(1, 0, 1, False), (2, 2, 3)],
        [(1, 4, 5)],
    ),
    "gone, though the unload failed before": (
        [(ABSENT, 0, 1, False), (1, 2, 3)],
        [(ABSENT, 4, 5)],
    ),
    "unused after it was used": ([(1, 0, 1, False)], [(1, 2, 3), (ABSENT, 4, 5)]),
    "an unknown version": ([(1, 0, 1)], [(7, 2, 3)]),
    "replaced long ago": ([(1, 0, 1), (2, 2, 3)], [(1, 4, 5)]),
    "gone though loaded": ([(1, 0, 1)], [(ABSENT, 2, 3)]),
    "some version, though unloaded": ([(1, 0, 1), (ABSENT, 2, 3)], [(PRESENT, 4, 5)]),
    "there though unloaded": ([(1, 0, 1), (ABSENT, 2, 3)], [(1, 4, 5)]),
    "before it was loaded": ([(1, 6, 7)], [(1, 2, 3)]),
    "old again after new was seen": ([(1, 0, 1), (2, 2, 20)], [(2, 5, 6), (1, 7, 8)]),
    "readers who disagree on the order of three": (
        [(1, 0, 1), (2, 2, 20), (3, 2, 20)],
        [(2, 5, 6), (3, 7, 8), (2, 9, 10)],
    ),
    "a load that may have failed, used too late": (
        [(1, 0, 20), (2, 0, 20, False)],
        [(1, 5, 6), (2, 7, 8), (1, 9, 10)],
    ),
    "gone after an unclear load was used": ([(1, 0, None)], [(1, 4, 5), (ABSENT, 6, 7)]),
}


@pytest.mark.parametrize("story", ACCEPTED)
def test_judge_accepts_possible_history(story):
    assert _violations(*ACCEPTED[story]) == []


@pytest.mark.parametrize("story", PLANTED)
def test_a_planted_violation_is_found(story):
    assert len(_violations(*PLANTED[story])) == 1


@pytest.mark.parametrize(
    ("story", "words"),
    [
        ("an unknown version", "answered as version 7 between {2} and {3}, though no racer has"),
        (
            "replaced long ago",
            "answered as version 1 between {4} and {5}, though version 2 came by {3}",
        ),
        ("old again after new was seen", "though version 2 came by {6}"),
        ("there though unloaded", "though it was unloaded by {3}"),
        ("before it was loaded", "though that was not loaded before {6}"),
        ("gone though loaded", "was gone between {2} and {3}, though version 1 came by {1}"),
        (
            "some version, though unloaded",
            "was there between {4} and {5}, though it was unloaded by",
        ),
    ],
)
def test_a_violation_says_what_it_contradicts(story, words):
    [violation] = _violations(*PLANTED[story])
    assert words.format(*(f"{second:.6f}" for second in range(10))) in violation


def test_libraries_are_distinguished():
    writes = [Write("a", 1, 0, 1), Write("b", 2, 0, 1)]
    reads = [Read("a", 1, 2, 3), Read("b", 1, 2, 3)]
    [violation] = find_violations(writes, reads)
    assert violation.startswith("b answered as version 1 between")


@pytest.mark.parametrize("seed", range(30))
def test_a_true_register_is_never_accused(seed):
    """Events in a known order, whose times are widened at random, always pass."""
    random = Random(seed)
    value, stamp = ABSENT, 0
    writes, reads = [], []
    for moment in range(300):
        started = moment - random.expovariate(0.2)
        finished = moment + random.expovariate(0.2)
        if random.random() < 0.3:
            stamp += 1
            value = random.choice([ABSENT, stamp, stamp, random.randrange(1, stamp + 1)])
            known = random.random() < 0.9
            writes.append(Write("a", value, started, finished if known else None))
        else:
            reads.append(Read("a", value, started, finished))
    assert find_violations(writes, reads) == []


def test_a_generated_library_answers_with_its_stamp():
    source = library_text("t", 7)
    assert "STAMP = 7" in source
    compile(source, "t.py", "exec")
    argument = np.arange(4)
    assert check_answer(argument, 3, (argument * 3 + 7, 7)) == 7
    for wrong in ((argument, 7), (argument * 3 + 7, 8), argument, (argument * 3.0 + 7, 7)):
        with pytest.raises(ValueError, match=r"answered|expected"):
            check_answer(argument, 3, wrong)


def test_the_report_counts_what_went_wrong():
    log = RaceLog(
        writes=[Write("a", 1, 0, 1)],
        reads=[Read("a", 1, 2, 3), Read("a", ABSENT, 2, 3)],
        call_seconds=[0.001] * 99 + [1.0],
    )
    settings = {"seed": 1, "seconds": 2.0, "interpreters": 1, "callers": 1, "libraries": 1}
    settings["operators"] = 2
    report = summarize(log, **settings, aftermath=["an operator is left"])
    assert len(report.violations) == 2
    assert not report.ok
    assert report.calls_per_second == 50
    assert report.call_latencies_ms is not None
    assert (report.call_latencies_ms.p50, report.call_latencies_ms.max) == (1.0, 1000.0)
    assert report.load_latencies_ms is None
    assert summarize(RaceLog(), **settings, aftermath=[]).ok
