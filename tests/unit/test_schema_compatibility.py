"""Whether a newer version of an operator can stand in for the older one: PyTorch's answers."""

import pytest
from hypothesis import given

from opdispatch import parse_schema
from opdispatch.schema.compatibility import is_subtype
from tests.unit.schema_strategies import schemas

BOTH, BACKWARD, FORWARD, NEITHER = (True, True), (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # The structure.
        ("f(Tensor x) -> Tensor", "f(Tensor x) -> Tensor", BOTH),
        ("f(Tensor x) -> Tensor", "g(Tensor x) -> Tensor", NEITHER),
        ("f.a(Tensor x) -> Tensor", "f.b(Tensor x) -> Tensor", NEITHER),
        ("f(Tensor x) -> Tensor", "f(Tensor x, ...) -> Tensor", NEITHER),
        ("f(Tensor x) -> Tensor", "f(Tensor x) -> (Tensor, Tensor)", NEITHER),
        ("f(Tensor x) -> Tensor", "f(Tensor x) -> (Tensor, ...)", NEITHER),
        # Returns may become more special; forward, PyTorch does not look at them.
        ("f() -> Tensor?", "f() -> Tensor", BOTH),
        ("f() -> Tensor", "f() -> Tensor?", FORWARD),
        ("f() -> Tensor", "f() -> Tensor y", FORWARD),
        # Arguments come and go.
        ("f(Tensor x) -> ()", "f(Tensor x, int n) -> ()", NEITHER),
        ("f(Tensor x) -> ()", "f(Tensor x, int n=1) -> ()", BOTH),
        ("f(Tensor x) -> ()", "f(Tensor x, int[] n=[1]) -> ()", BACKWARD),
        ("f(Tensor x, int n=1) -> ()", "f(Tensor x) -> ()", FORWARD),
        ("f(Tensor x, int n=1) -> ()", "f(Tensor x, int m=1, int n=1) -> ()", NEITHER),
        # An argument changes.
        ("f(Tensor x, int n) -> ()", "f(Tensor x, int m) -> ()", NEITHER),
        ("f(int n) -> ()", "f(int? n) -> ()", BACKWARD),
        ("f(int? n) -> ()", "f(int n) -> ()", FORWARD),
        ("f(int n) -> ()", "f(SymInt n) -> ()", BOTH),
        ("f(int n) -> ()", "f(int[] n) -> ()", NEITHER),
        ("f(int[2] n) -> ()", "f(int[3] n) -> ()", NEITHER),
        ("f(Tensor x) -> ()", "f(Tensor(a!) x) -> ()", NEITHER),
        ("f(int n) -> ()", "f(int n=1) -> ()", BACKWARD),
        ("f(int n=1) -> ()", "f(int n) -> ()", NEITHER),
        ("f(int n=1) -> ()", "f(int n=2) -> ()", NEITHER),
        ("f(Scalar n=1) -> ()", "f(Scalar n=1.0) -> ()", NEITHER),
        ("f(*, int n) -> ()", "f(int n) -> ()", BOTH),
        ("f(int n) -> ()", "f(*, int n) -> ()", NEITHER),
        # Arguments for results stand last, so others come before them.
        ("f(*, Tensor(a!) out) -> ()", "f(*, int n=1, Tensor(a!) out) -> ()", BOTH),
        ("f(*, Tensor(a!) out) -> ()", "f(*, int n, Tensor(a!) out) -> ()", NEITHER),
        ("f(*, Tensor(a!) out) -> ()", "f(*, Tensor(a!) out, Tensor(b!) b) -> ()", BACKWARD),
        ("f(*, Tensor(a!) out) -> ()", "f(*, Tensor(b!) b, Tensor(a!) out) -> ()", NEITHER),
        ("f(*, int n=1, Tensor(a!) out) -> ()", "f(*, Tensor(a!) out) -> ()", FORWARD),
    ],
)
def test_a_new_schema_is_compatible_with_an_old_one_or_not(old, new, expected):
    old, new = parse_schema(old), parse_schema(new)
    forward, why = new.check_forward_compatible_with(old)
    assert (new.is_backward_compatible_with(old), forward) == expected
    assert bool(why) != forward


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("f() -> ()", "g() -> ()", "their names, their numbers of returns or their '...' differ"),
        ("f(int n) -> ()", "f(str n) -> ()", "the argument 'n' is not forward compatible"),
        ("f() -> ()", "f(int n) -> ()", "the new argument 'n' has no default"),
        ("f() -> ()", "f(int[] n=[]) -> ()", "the default of the new argument 'n' is a list"),
        ("f() -> ()", "f(*, Tensor(a!) o) -> ()", "the number of out arguments differs"),
        ("f(*, Tensor(a!) o) -> ()", "f(*, Tensor(a!) p) -> ()", "the out argument 'p' is not"),
    ],
)
def test_forward_incompatible_schema_gives_reason(old, new, why):
    assert parse_schema(new).check_forward_compatible_with(parse_schema(old))[1].startswith(why)


def test_an_older_schema_may_have_more_defaults_than_the_newer_has_arguments():
    """PyTorch reads past the end of the newer one's arguments here, or raises IndexError."""
    old = parse_schema("f(int n=1) -> ()")
    assert not parse_schema("f(*, Tensor(a!) out) -> ()").is_backward_compatible_with(old)


@given(schemas())
def test_every_schema_is_compatible_with_itself(schema):
    assert schema.is_backward_compatible_with(schema)
    assert schema.check_forward_compatible_with(schema) == (True, "")


@pytest.mark.parametrize(
    ("sub", "base", "expected"),
    [
        ("Tensor", "Tensor?", True),
        ("Tensor?", "Tensor", False),
        ("int", "Scalar?", True),
        ("bool", "Scalar", False),
        ("int[]", "Scalar[]", False),
        ("(int, float)", "(Scalar, Scalar)", True),
        ("(int, float)", "(Scalar, int)", False),
        ("(int, float)", "(int, float, int)", False),
        ("NoneType", "int?", True),
        ("int", "Union(int, str)", True),
        ("Union(int, str)", "Union(int, str, float)", True),
        ("Union(int, str)", "int", False),
        ("Dict(str, int)", "Any", True),
        ("t", "u", True),
    ],
)
def test_a_type_is_a_subtype_of_another_or_not(sub, base, expected):
    one, other = (parse_schema(f"f({t} x) -> ()").arguments[0].type.plain for t in (sub, base))
    assert is_subtype(one, other) == expected
