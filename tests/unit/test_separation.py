"""Which interpreters are for libraries that do harm."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.blame.separation import Separation

NAMES = [f"worker-{n}" for n in range(1, 7)]


def test_interpreter_that_has_died_becomes_the_cell():
    separation = Separation()
    assert separation.update({"bad"}, NAMES[:3], "worker-2")
    assert separation.cells == {"worker-2"}
    assert separation.may_hold("worker-2", "bad")
    assert not separation.may_hold("worker-1", "bad")
    assert separation.may_hold("worker-1", "good")
    assert not separation.may_hold("worker-2", "good")


def test_single_interpreter_holds_everything():
    separation = Separation()
    separation.update({"bad"}, NAMES[:1], "worker-1")
    assert separation.may_hold("worker-1", "bad")
    assert separation.may_hold("worker-1", "good")


def test_cell_that_comes_back_first_is_left_to_the_others():
    separation = Separation()
    separation.update({"bad"}, NAMES[:3], "worker-1")
    assert separation.note_joined("worker-1", ["worker-1"], NAMES[:3])
    assert separation.may_hold("worker-1", "good")
    assert separation.cells & {"worker-2", "worker-3"} == separation.cells != set()
    assert not separation.note_joined("worker-2", ["worker-1", "worker-2"], NAMES[:3])


def test_cells_go_with_the_last_library_that_does_harm():
    separation = Separation()
    separation.update({"bad"}, NAMES[:2], "worker-1")
    assert separation.update(set(), NAMES[:2])
    assert separation.cells == set()


def test_fewer_interpreters_have_fewer_cells():
    separation = Separation()
    separation.update({"bad"}, NAMES, "worker-1")
    separation.update({"bad"}, NAMES, "worker-2")
    assert separation.cells == {"worker-1", "worker-2"}
    separation.update({"bad"}, NAMES[:2])
    assert separation.cells == {"worker-1"}


STEPS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(["a", "b", "c"])),
        st.lists(st.sampled_from(NAMES), unique=True),
        st.sampled_from(NAMES),
        st.lists(st.sampled_from(NAMES), unique=True),
    )
)


@given(STEPS)
def test_every_library_has_an_interpreter_and_no_innocent_one_shares_a_culprits(story):
    separation = Separation()
    for apart, names, name, ready in story:
        separation.update(apart, names, name)
        separation.note_joined(name, [*ready, name], names)
        assert separation.cells <= set(names)
        for library in ("a", "b", "c", "innocent"):
            if names:
                assert any(separation.may_hold(each, library) for each in names)
        for each in names if len(names) > 1 else ():
            held = {x for x in ("a", "b", "c", "innocent") if separation.may_hold(each, x)}
            assert not (held & apart and held - apart)
