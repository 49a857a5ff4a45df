"""Attributes of several objects that change at one instant."""

from types import SimpleNamespace

import pytest

from opdispatch.dispatch.attribute_stores import store_at_once
from opdispatch.dispatch.left_right import LeftRight


class Slotted:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 0


class Noticing:
    """Calls ``notice`` when it is let go."""

    def __init__(self, notice):
        self.notice = notice

    def __del__(self):
        self.notice()


def test_all_of_them_are_stored():
    one, other = Slotted(), SimpleNamespace(a=1, b=2, c=3)
    store_at_once([(one, "value", 7), (other, "a", 10), (other, "c", 30)])
    assert (one.value, other) == (7, SimpleNamespace(a=10, b=2, c=30))


def test_old_values_are_released_after_all_stores():
    """A finalizer is Python: in the middle, other threads could run, and see half of it."""
    owners, seen = [Slotted() for _ in range(3)], []
    for owner in owners:
        owner.value = Noticing(lambda: seen.append([owner.value for owner in owners]))
    store_at_once([(owner, "value", number) for number, owner in enumerate(owners)])
    assert seen == [[0, 1, 2]] * 3


def test_missing_attribute_raises_before_anything_is_stored():
    one = Slotted()
    with pytest.raises(AttributeError):
        store_at_once([(one, "value", 7), (SimpleNamespace(), "missing", 1)])
    assert one.value == 0


def test_a_left_right_shows_its_change_at_the_same_instant():
    value, one, seen = LeftRight(list), Slotted(), []
    one.value = Noticing(lambda: seen.append((one.value, value.read(list))))
    value.write(lambda copy: copy.append(1), [(one, "value", 7)])
    assert seen == [(7, [1])]


def test_a_left_right_that_cannot_change_stores_nothing():
    value, one = LeftRight(list), Slotted()
    with pytest.raises(IndexError):
        value.write(lambda copy: copy.pop(), [(one, "value", 7)])
    assert one.value == 0
