"""Choices that the daemon remembers, and the calls that they hold for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    OperatorName,
    Registration,
    Tensor,
    parse_schema,
)
from opdispatch.errors import ArgumentError, OperatorNotFoundError
from opdispatch_server.daemon.calls.kernel_choice import CallChooser, Choice
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import WireError
from tests.waits import LONGEST_WAIT

X = np.arange(3.0)


class Registry:
    """A registry, and a chooser that is asked as the daemon asks it."""

    def __init__(self) -> None:
        self.operators = OperatorRegistry()
        self.chooser = CallChooser(self.operators)

    def define(self, schema: str) -> None:
        self._publish(Registration("def", schema=parse_schema(schema)))

    def implement(self, schema: str, key: DispatchKey, label: str) -> None:
        kernel = KernelFunction.from_boxed(lambda op, keys, stack: None)
        name = parse_schema(schema).name
        self._publish(Registration("impl", name=name, key=key, kernel=kernel, site=label))

    def choose(self, operator: str, *args: Any, **kwargs: Any) -> Choice:
        return asyncio.run(self.chooser.choose(call_request(operator, args, kwargs)))

    def _publish(self, registration: Registration) -> None:
        self.operators.publish((registration,), ())


ADD = "m::add(Tensor x, Tensor y) -> Tensor"
ADD_SCALAR = "m::add.Scalar(Tensor x, Scalar y) -> Tensor"


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for schema in (ADD, ADD_SCALAR):
        registry.define(schema)
        registry.implement(schema, DispatchKey.CPU, "old")
    return registry


def test_calls_of_the_same_kinds_are_chosen_once(registry: Registry):
    first = registry.choose("m::add", X, X)
    assert registry.choose("m::add", X + 1, np.zeros((2, 2), np.int8)) is first
    assert str(first.op.name) == "m::add"
    assert not first.writes


def test_keys_that_a_kernel_names_are_chosen_once_and_count(registry: Registry):
    registry.implement(ADD, DispatchKey.AutogradCPU, "autograd")

    def choose(keys: DispatchKeySet) -> Choice:
        request = call_request("m::add", (X, X), {}, redispatch_keys=keys)
        return asyncio.run(registry.chooser.choose(request))

    cpu = DispatchKeySet(DispatchKey.CPU)
    both = cpu.add(DispatchKey.AutogradCPU)
    below, above = choose(cpu), choose(both)
    assert (str(below.resolution.key), str(above.resolution.key)) == ("CPU", "AutogradCPU")
    assert choose(cpu) is below
    assert choose(both) is above
    assert registry.choose("m::add", X, X) is not below


def test_other_kinds_are_other_choices(registry: Registry):
    assert str(registry.choose("m::add", X, X).op.name) == "m::add"
    assert str(registry.choose("m::add", X, 1.0).op.name) == "m::add.Scalar"
    # A NumPy scalar comes as a tensor without dimensions, and is a number.
    assert str(registry.choose("m::add", X, np.float64(1)).op.name) in ("m::add", "m::add.Scalar")
    by_name = registry.choose("m::add", X, y=X)
    assert by_name.op.name == registry.choose("m::add", X, X).op.name
    with pytest.raises(ArgumentError):
        registry.choose("m::add", X, "text")
    with pytest.raises(ArgumentError):
        registry.choose("m::add", X, X, X)


# A bool takes every int, and an int every bool: the first of them is chosen for both.
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("bool", "int", "float"), ["float", "bool", "bool", "float", "bool", "float", "bool"]),
        (("int", "float", "bool"), ["float", "int", "int", "float", "int", "float", "float"]),
    ],
)
def test_numbers_that_are_arrays_choose_by_their_dtype(
    registry: Registry, kinds: tuple[str, ...], expected: list[str]
):
    for kind in kinds:
        registry.define(f"m::f.{kind}(Tensor x, {kind} y) -> Tensor")
        registry.implement(f"m::f.{kind}(Tensor x, {kind} y) -> Tensor", DispatchKey.CPU, kind)
    numbers = [np.float64(1), np.int8(1), np.array(True), np.float32(2), np.uint64(2), 2.0**70]
    numbers.append(np.uint64(2**63))  # out of the range of an int
    for _ in range(2):
        chosen = [str(registry.choose("m::f", X, number).op.name)[5:] for number in numbers]
        assert chosen == expected
    with pytest.raises(ArgumentError):
        registry.choose("m::f", X, X)


def test_a_tensor_of_one_element_is_a_number_whatever_was_chosen_for_others(registry: Registry):
    for kind in ("int", "float", "Tensor"):
        registry.define(f"m::g.{kind}(Tensor x, {kind} y) -> Tensor")
        registry.implement(f"m::g.{kind}(Tensor x, {kind} y) -> Tensor", DispatchKey.CPU, kind)
    tensors = [X, X[:1], X[:1].astype(int), X[1], X.reshape(1, 3)]
    for _ in range(2):
        chosen = [str(registry.choose("m::g", X, Tensor(y)).op.name)[5:] for y in tensors]
        assert chosen == ["Tensor", "float", "int", "float", "Tensor"]


def test_keys_of_a_tensor_count(registry: Registry):
    registry.implement(ADD, DispatchKey.AutogradCPU, "autograd")
    plain = registry.choose("m::add", X, X)
    tracked = registry.choose("m::add", Tensor(X, requires_grad=True), X)
    assert (str(plain.resolution.key), str(tracked.resolution.key)) == ("CPU", "AutogradCPU")


def test_choices_follow_publications(registry: Registry):
    assert registry.choose("m::add", X, X).resolution.registered_at == "old"
    registry.implement(ADD, DispatchKey.CPU, "new")
    assert registry.choose("m::add", X, X).resolution.registered_at == "new"
    with pytest.raises(OperatorNotFoundError):
        registry.choose("m::sub", X)
    registry.define("m::sub(Tensor x) -> Tensor")
    registry.implement("m::sub(Tensor x) -> Tensor", DispatchKey.CPU, "sub")
    assert registry.choose("m::sub", X).resolution.registered_at == "sub"


def test_errors_are_found_anew(registry: Registry):
    for _ in range(2):
        with pytest.raises(OperatorNotFoundError):
            registry.choose("m::nothing", X)
        with pytest.raises(ArgumentError):
            registry.choose("m::add")
        broken = call_request("m::add", (X, X), {})
        broken.args[0].ClearField("tensor")
        with pytest.raises(WireError):
            asyncio.run(registry.chooser.choose(broken))


def test_an_operator_that_writes_says_so():
    registry = Registry()
    schema = "m::fill_(Tensor(a!) self) -> Tensor(a!)"
    registry.define(schema)
    registry.implement(schema, DispatchKey.CPU, "fill")
    assert registry.choose("m::fill_", X).writes


def test_a_call_of_many_bytes_is_looked_at_in_a_thread_and_others_are_not(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    threads = []
    look = CallChooser._look

    def noting(self: CallChooser, *args: Any) -> Choice:
        threads.append(threading.get_ident())
        return look(self, *args)

    monkeypatch.setattr(CallChooser, "_look", noting)
    registry.define("m::join(Tensor x, str[] texts) -> Tensor")
    registry.implement("m::join(Tensor x, str[] texts) -> Tensor", DispatchKey.CPU, "join")
    registry.choose("m::join", X, ["a"] * 20)
    many = registry.choose("m::join", X, ["a"] * 20_000)
    assert str(many.op.name) == "m::join"
    registry.choose("m::join", X, ["a"])
    here = threading.get_ident()
    assert [each == here for each in threads] == [True, False, True]


def test_choice_made_during_a_publication_is_not_remembered(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    registry.define("m::join(Tensor x, str[] texts) -> Tensor")
    registry.implement("m::join(Tensor x, str[] texts) -> Tensor", DispatchKey.CPU, "old")
    look = CallChooser._look
    chosen = []

    def coming(self: CallChooser, *args: Any) -> Choice:
        choice = look(self, *args)
        if not chosen:
            registry.implement("m::join(Tensor x, str[] texts) -> Tensor", DispatchKey.CPU, "new")
        chosen.append(choice.resolution.registered_at)
        return choice

    monkeypatch.setattr(CallChooser, "_look", coming)
    choice = registry.choose("m::join", X, ["a"] * 20_000)
    assert chosen == ["old", "new"]
    assert choice.resolution.registered_at == "new"


def test_long_lists_of_numbers_are_of_a_kind_whatever_their_length(registry: Registry):
    registry.define("m::pick(Tensor x, int[] places) -> Tensor")
    registry.implement("m::pick(Tensor x, int[] places) -> Tensor", DispatchKey.CPU, "pick")
    first = registry.choose("m::pick", X, [1] * 1000)
    assert registry.choose("m::pick", X, [2] * 100_000) is first
    with pytest.raises(ArgumentError, match="expected int, got float"):
        registry.choose("m::pick", X, [1.5] * 1000)


def test_calls_of_many_arguments_and_deep_lists_are_not_remembered(registry: Registry):
    registry.define("m::nest(Tensor x, int[][][][] places) -> Tensor")
    registry.implement("m::nest(Tensor x, int[][][][] places) -> Tensor", DispatchKey.CPU, "nest")
    assert registry.choose("m::nest", X, [[[[1]]]]) is not registry.choose("m::nest", X, [[[[1]]]])
    with pytest.raises(ArgumentError, match="but 1000 were given"):
        registry.choose("m::add", *[X] * 1000)


class Moments:
    """Has another thread do something before and after a publication is seen, in the midst of it.

    These are moments of an operator that is defined, or defined otherwise.
    """

    def __init__(self, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._before = before
        self._after = after

    def on_operator_deregistered(self, name: OperatorName) -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(self._before).result(LONGEST_WAIT)

    def on_operator_registered(self, name: OperatorName) -> None:
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(self._after).result(LONGEST_WAIT)


def test_no_choice_is_older_than_one_before_it(registry: Registry):
    """Never return a choice remembered before a publication once any newer one has been made."""

    def implementing(label: str) -> Registration:
        kernel = KernelFunction.from_boxed(lambda op, keys, stack: None)
        name = parse_schema(ADD).name
        return Registration("impl", name=name, key=DispatchKey.CPU, kernel=kernel, site=label)

    other = "m::other(Tensor x) -> Tensor"
    first = [Registration("def", schema=parse_schema(other)), implementing("1")]
    [old] = registry.operators.publish(first, ())
    chosen = []

    def choose(*args: Any, **kwargs: Any) -> None:
        chosen.append(registry.choose("m::add", *args, **kwargs).resolution.registered_at)

    def choose_both() -> None:
        choose(X, y=X)
        choose(X, X)

    moments = Moments(before=lambda: choose(X, X), after=choose_both)
    registry.operators.dispatcher.add_registration_listener(moments)
    chosen.clear()
    changed = Registration("def", schema=parse_schema(other.replace("x", "y")))
    registry.operators.publish([changed, implementing("2")], old)
    assert chosen == ["1", "2", "2"]
