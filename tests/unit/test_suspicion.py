"""The blame for a death, against a model of the possible culprits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.blame.flight_record import IMPORT, KERNEL, Subject
from opdispatch_server.blame.suspicion import (
    CLEARED_AFTER,
    FIRST_SPELL,
    LONGEST_SPELL,
    Cause,
    Death,
    Suspicion,
    Verdict,
)


def kernel(library: str, name: str = "f") -> Subject:
    return Subject(KERNEL, library, f"{library}::{name}")


BAD, GOOD, OTHER = kernel("bad"), kernel("good"), kernel("other")
GOOD_IMPORT = Subject(IMPORT, "good")
OWN_DOING = [Cause.CRASHED, Cause.OVERDUE, Cause.LOCKED, Cause.SILENT, Cause.UNFIT]


def judge(
    suspicion: Suspicion, *running: Subject, cause: Cause = Cause.CRASHED, now: float = 0.0
) -> Verdict:
    return suspicion.judge(Death(cause, running), {}, now)


def test_kernel_that_ran_alone_is_the_culprit_and_its_library_apart():
    suspicion = Suspicion()
    verdict = judge(suspicion, BAD)
    assert (verdict.culprit, verdict.is_proven) == (BAD, True)
    assert suspicion.apart(0.0) == ["bad"]
    assert verdict.describe() == "because of the kernel of bad::f"


def test_import_is_not_blamed_while_a_kernel_ran():
    suspicion = Suspicion()
    assert judge(suspicion, GOOD_IMPORT, BAD).culprit == BAD
    assert suspicion.record_of("good") is None


def test_import_that_ran_by_itself_is_blamed():
    assert judge(Suspicion(), GOOD_IMPORT).culprit == GOOD_IMPORT


def test_death_from_outside_with_nothing_running_blames_no_library():
    suspicion = Suspicion()
    death = Death(Cause.KILLED, recent=[GOOD])
    assert suspicion.judge(death, {}, 0.0).shares == {}
    assert suspicion.apart(0.0) == []


def test_orderly_end_blames_no_library():
    assert judge(Suspicion(), BAD, cause=Cause.ORDERLY).shares == {}


def test_named_culprit_is_blamed_despite_other_running_libraries():
    suspicion = Suspicion()
    death = Death(Cause.OVERDUE, [GOOD, BAD], named=BAD)
    assert suspicion.judge(death, {}, 0.0).culprit == BAD
    assert suspicion.apart(0.0) == ["bad"]


def test_kernel_that_has_run_often_without_harm_is_not_suspected_beside_a_new_one():
    suspicion = Suspicion()
    death = Death(Cause.CRASHED, [GOOD, GOOD, OTHER, BAD])
    verdict = suspicion.judge(death, {GOOD: 1000, OTHER: 1000}, 0.0)
    assert verdict.culprit == BAD
    assert suspicion.apart(0.0) == ["bad"]


def test_suspicion_that_recurs_wins():
    suspicion = Suspicion()
    assert judge(suspicion, BAD, GOOD).culprit is None
    assert judge(suspicion, BAD, OTHER).culprit == BAD


def test_others_are_cleared_as_soon_as_the_culprit_is_proven():
    suspicion = Suspicion()
    verdict = judge(suspicion, BAD, GOOD)
    assert set(verdict.shares) == {BAD, GOOD}
    assert set(suspicion.apart(0.0)) == {"bad", "good"}
    judge(suspicion, BAD)
    assert suspicion.apart(0.0) == ["bad"]


def test_suspect_is_cleared_by_calls_that_go_well_and_a_proven_culprit_is_not():
    suspicion = Suspicion()
    judge(suspicion, GOOD, cause=Cause.KILLED)
    judge(suspicion, BAD)
    for _ in range(CLEARED_AFTER):
        suspicion.note_success(GOOD)
        suspicion.note_success(BAD)
    assert suspicion.apart(1.0) == ["bad"]


def test_time_apart_doubles_with_every_spell_and_always_ends():
    suspicion, now, spells = Suspicion(), 0.0, []
    for _ in range(12):
        judge(suspicion, BAD, now=now)
        end = suspicion.next_end(now)
        assert end is not None
        spells.append(end - now)
        assert not suspicion.is_apart("bad", end)
        now = end
    assert spells == [min(FIRST_SPELL * 2**n, LONGEST_SPELL) for n in range(12)]


def test_library_that_is_gone_has_a_clean_slate():
    suspicion = Suspicion()
    judge(suspicion, BAD)
    suspicion.forget("bad")
    assert suspicion.apart(0.0) == []
    assert suspicion.record_of("bad") is None


def test_proof_takes_nothing_back_from_the_next_version_of_a_suspect():
    suspicion = Suspicion()
    judge(suspicion, BAD, kernel("good", "f"))
    suspicion.forget("good")
    judge(suspicion, kernel("good", "g"))
    assert judge(suspicion, BAD).culprit == BAD
    assert suspicion.apart(0.0) == ["bad", "good"]


NAMES = st.sampled_from(["a", "b", "c", "d"])
SUBJECTS = st.one_of(
    st.builds(kernel, NAMES, st.sampled_from(["f", "g"])),
    st.builds(Subject, st.just(IMPORT), NAMES),
)
DEATHS = st.builds(
    Death,
    st.sampled_from(list(Cause)),
    st.lists(SUBJECTS, max_size=4),
    st.none(),
    st.lists(SUBJECTS, max_size=3),
)
RUNS = st.dictionaries(SUBJECTS, st.integers(0, 10_000))


@given(st.lists(st.tuples(DEATHS, RUNS, st.floats(0, 1000)), max_size=12))
def test_only_what_ran_is_blamed_and_never_for_ever(story):
    suspicion, now, blamed = Suspicion(), 0.0, set()
    for death, runs, pause in story:
        now += pause
        verdict = suspicion.judge(death, runs, now)
        may_be = set(death.running)
        if not may_be and death.cause is not Cause.KILLED:
            may_be = set(death.recent)
        may_be = {subject for subject in may_be if subject.kind == KERNEL} or may_be
        if death.cause is Cause.ORDERLY:
            may_be = set()
        assert set(verdict.shares) <= may_be
        assert sum(verdict.shares.values()) <= 1.0 + 1e-9
        if len(may_be) == 1:
            assert verdict.culprit in may_be
        blamed |= {subject.library for subject in verdict.shares}
        assert set(suspicion.apart(now)) <= blamed
    while (end := suspicion.next_end(now)) is not None:
        now = end
    assert suspicion.apart(now) == []


@given(
    st.lists(st.lists(st.sampled_from(["x", "y", "z"]), max_size=3), min_size=3, max_size=12),
    st.sampled_from(OWN_DOING),
)
def test_culprit_of_several_deaths_is_found_among_those_that_were_there(beside, cause):
    """One library has done it each time; no other was there every time, or ran so seldom."""
    suspicion = Suspicion()
    runs = {kernel(name): 50 for name in "xyz"}
    for names in beside:
        death = Death(cause, [BAD, *map(kernel, names)])
        if cause is Cause.UNFIT:
            death = death._replace(running=(), recent=death.running)
        verdict = suspicion.judge(death, runs, 0.0)
    assert verdict.culprit == BAD
    assert suspicion.apart(0.0) == ["bad"]
