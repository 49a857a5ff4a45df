"""Names: to entries, and from names without overload to the overloads that are defined."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import Dispatcher, OperatorName
from opdispatch.dispatch.name_table import NameTable
from opdispatch.dispatch.operator_entry import OperatorEntry
from opdispatch.dispatch.registration import Registration, RegistrationHandle

DISPATCHER = Dispatcher()
NUMBERS = itertools.count(1)


def name(text):
    return OperatorName.parse(text)


def entry(text, *, defined=True):
    made = OperatorEntry(DISPATCHER, name(text))
    if defined:  # only the numbers of handles count here
        handle = RegistrationHandle(DISPATCHER, Registration("def"))
        handle.number = next(NUMBERS)
        made.definitions.append(handle)
    return made


def came(entry):
    return (entry.name, entry, entry.newest_definition_number)


def went(text):
    return (name(text), None, None)


@pytest.fixture
def table():
    made = NameTable()
    made.update([came(entry("t::f")), came(entry("t::f.b")), came(entry("t::f.a"))])
    return made


def test_overloads_stand_in_the_order_of_their_definition(table):
    assert [str(n) for n in table.overloads["t::f"]] == ["t::f", "t::f.b", "t::f.a"]


def test_an_overload_that_goes_leaves_the_others_in_order(table):
    table.update([went("t::f.b")])
    assert [str(n) for n in table.overloads["t::f"]] == ["t::f", "t::f.a"]
    assert name("t::f.b") not in table.entries


def test_the_last_overload_takes_the_name_with_it(table):
    table.update([went("t::f"), went("t::f.a"), went("t::f.b")])
    assert (table.entries, table.overloads) == ({}, {})


def test_an_operator_with_kernels_alone_is_a_name_and_no_overload(table):
    only_kernels = entry("t::g", defined=False)
    table.update([came(only_kernels)])
    assert table.entries[name("t::g")] is only_kernels
    assert "t::g" not in table.overloads


def test_a_definition_may_come_and_go_while_the_entry_stays(table):
    undefined = entry("t::f", defined=False)
    table.update([came(undefined)])
    assert [str(n) for n in table.overloads["t::f"]] == ["t::f.b", "t::f.a"]
    table.update([came(entry("t::f"))])
    assert [str(n) for n in table.overloads["t::f"]] == ["t::f.b", "t::f.a", "t::f"]


def test_redefined_overload_comes_last(table):
    successor = entry("t::f.b")
    table.update([came(successor)])
    assert table.entries[name("t::f.b")] is successor
    assert [str(n) for n in table.overloads["t::f"]] == ["t::f", "t::f.a", "t::f.b"]


def test_changes_may_come_in_any_order(table):
    first, second = came(entry("t::f.c")), came(entry("t::f.d"))
    table.update([second, first])
    assert [str(n) for n in table.overloads["t::f"]][-2:] == ["t::f.c", "t::f.d"]


def test_a_copy_is_equal_and_apart(table):
    copy = table.copy()
    assert (copy.entries, copy.overloads) == (table.entries, table.overloads)
    copy.update([went("t::f")])
    assert name("t::f") in table.entries
    assert len(table.overloads["t::f"]) == 3


changes = st.lists(
    st.tuples(st.sampled_from(["t::f", "t::f.a", "t::f.b", "t::g", "u::f"]), st.integers(0, 2))
)


@given(changes)
def test_a_table_agrees_with_the_entries_that_came_and_did_not_go(steps):
    table, entries = NameTable(), {}
    for text, kind in steps:
        if kind == 0:
            table.update([went(text)])
            entries.pop(text, None)
        else:
            entries[text] = entry(text, defined=kind == 1)
            table.update([came(entries[text])])
        assert table.agrees_with(entries.values())
    if entries:
        assert not table.agrees_with([])
        assert not table.agrees_with([entry(text) for text in entries])
