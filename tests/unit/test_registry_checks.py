"""Violations that the recomputation of the tables finds."""

import pytest

from opdispatch import (
    Dispatcher,
    DispatchKey,
    KernelFunction,
    parse_schema,
)
from opdispatch.functionalities import BUILTIN_FALLBACKS
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS

K = DispatchKey
SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
NAME = SCHEMA.name
KERNEL = KernelFunction.from_unboxed(lambda x: x)


@pytest.fixture
def registered():
    """A dispatcher of which invariants will be broken: it is not checked at the end."""
    dispatcher = Dispatcher()
    dispatcher.register_def(SCHEMA)
    assert dispatcher.check_invariants() == []
    return dispatcher


def test_a_lost_entry_is_found(registered):
    registered._registry.entries.clear()
    assert registered.check_invariants() == [
        "the published names are not those of the registered operators"
    ]


def test_an_entry_for_nothing_is_found(registered):
    registered._registry.entries[NAME].definitions.clear()
    violations = registered.check_invariants()
    assert "t::f has an entry, and nothing is registered for it" in violations
    assert "t::f: its published definition is not the registered one" in violations


def test_an_unpublished_fallback_is_found(registered):
    registered._registry.fallbacks[K.Tracer] = registered._registry.fallbacks[K.AutogradCPU]
    assert registered.check_invariants() == ["the published fallbacks are not the registered ones"]


def test_every_runtime_key_may_have_a_fallback(dispatcher):
    for key in set(RUNTIME_KEYS) - set(BUILTIN_FALLBACKS) - {K.Undefined}:
        with dispatcher.register_fallback(key, KERNEL):
            assert dispatcher.fallbacks()[key].kernel is KERNEL
        assert key not in dispatcher.fallbacks()


def test_the_fallback_of_autograd_private_use_1_may_be_covered(dispatcher):
    key = DispatchKey.AutogradPrivateUse1
    own = dispatcher.fallbacks()[key]
    older = dispatcher.register_fallback(key, KernelFunction.fallthrough(), site="older")
    newer = dispatcher.register_fallback(key, KernelFunction.fallthrough(), site="newer")
    assert dispatcher.fallbacks()[key] is newer.registration
    newer.close()
    assert dispatcher.fallbacks()[key] is older.registration
    older.close()
    assert dispatcher.fallbacks()[key] is own
    assert dispatcher.check_invariants() == []
