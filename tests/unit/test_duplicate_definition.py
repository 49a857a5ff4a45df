"""Registrations that are made twice: one is refused, another takes the place of the first."""

import pytest

from opdispatch import (
    DispatchKey,
    DuplicateDefinitionError,
    KernelFunction,
    Registration,
    parse_schema,
)
from opdispatch.dispatch.duplicate_definition import refuse_duplicate, refuse_override

K = DispatchKey
SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
KERNEL = KernelFunction.from_unboxed(lambda x: x)
RULE = {"name": SCHEMA.name, "rule_class": int, "rule": print}


class Registered:
    """The registrations so far, by hand."""

    def __init__(self):
        self.entries, self.namespaces, self.fallbacks, self.rules = {}, {}, {}, {}


class Handles:
    """The definitions of an operator, and the handle of one registration."""

    def __init__(self, registration):
        self.registration = registration
        self.definitions = [self]


@pytest.mark.parametrize(
    ("table", "key", "facts", "text"),
    [
        ("entries", SCHEMA.name, {"kind": "def", "schema": SCHEMA}, "operator t::f is defined"),
        ("namespaces", "t", {"kind": "library", "namespace": "t"}, "the namespace 't' has a lib"),
        ("fallbacks", K.Fake, {"kind": "fallback", "key": K.Fake}, "the dispatch key Fake has a f"),
        ("rules", (SCHEMA.name, int), {"kind": "dispatch_rule", **RULE}, "int has a rule for t::f"),
    ],
)
def test_second_registration_is_refused_with_both_sites(table, key, facts, text):
    registered = Registered()
    refuse_duplicate(registered, Registration(site="one.py:1", **facts))
    handle = Handles(Registration(site="one.py:1", **facts))
    getattr(registered, table)[key] = handle if table == "entries" else [handle]
    with pytest.raises(DuplicateDefinitionError, match=text) as caught:
        refuse_duplicate(registered, Registration(site="two.py:2", **facts))
    assert caught.value.facts["first_site"] == "one.py:1"
    assert caught.value.facts["second_site"] == "two.py:2"


def test_second_definition_from_the_same_line_says_to_close_the_old_library():
    registered = Registered()
    registered.entries[SCHEMA.name] = Handles(Registration("def", "one.py:1", schema=SCHEMA))
    with pytest.raises(DuplicateDefinitionError) as caught:
        refuse_duplicate(registered, Registration("def", "one.py:1", schema=SCHEMA))
    assert "close the old library first" in caught.value.hint


def test_second_kernel_is_allowed():
    registered = Registered()
    kernel = Registration("impl", name=SCHEMA.name, key=K.CPU, kernel=KERNEL)
    registered.entries[SCHEMA.name] = Handles(kernel)
    refuse_duplicate(registered, kernel)


def test_override_is_refused_only_for_the_same_key():
    kernels = [Registration("impl", "one.py:1", name=SCHEMA.name, key=K.CPU, kernel=KERNEL)]
    refuse_override(SCHEMA.name, K.CUDA, kernels)
    with pytest.raises(DuplicateDefinitionError, match=r"has a kernel for CPU already.*one\.py:1"):
        refuse_override(SCHEMA.name, K.CPU, kernels)
