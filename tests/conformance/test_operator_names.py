"""Attributes of an operator and its packet, compared with PyTorch's: code that reads them runs."""

import copy
import random

import pytest

import opdispatch

torch = pytest.importorskip("torch")

SCHEMAS = [
    "f(Tensor x) -> Tensor",
    "f.two(Tensor x, int n=2) -> Tensor",
    "view(Tensor(a) x) -> Tensor(a)",
    "write_(Tensor(a!) x, Tensor(b) y) -> Tensor(a!)",
    "views.both(Tensor(a) x, Tensor(b) y) -> (Tensor(a), Tensor(b))",
    "out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    "g(Tensor x, int n=2, float? y=None, bool b=True, str s='a', int[] sizes=[1, 2]) -> Tensor[]",
    "lists(int[2] a, int[3]? b, int[] c, Tensor[] d, float[1] e=1.0) -> (Tensor, int[2])",
    "nothing() -> ()",
]
TAGS = [(), ("pointwise",), ("core", "pointwise"), ("needs_exact_strides",)]
KEYS = ["CPU", "Meta", "AutogradCPU", "Autograd", "CompositeImplicitAutograd", "SparseCPU"]


@pytest.fixture(scope="module")
def libraries():
    ours = opdispatch.Library("named", "FRAGMENT")
    theirs = torch.library.Library("named", "FRAGMENT")
    rng = random.Random(1)
    for schema in SCHEMAS:
        tags = rng.choice(TAGS)
        ours.define(schema, tags=tags)
        theirs.define(schema, tags=[getattr(torch.Tag, tag) for tag in tags])
        for key in rng.sample(KEYS, 2):
            name = schema.partition("(")[0]
            ours.impl(name, lambda *args: None, key)
            theirs.impl(name, lambda *args: None, key)
    yield
    ours.close()
    theirs._destroy()


def operators(ops):
    """Return every overload that was defined, and its packet."""
    for schema in SCHEMAS:
        name, _, overload = schema.partition("(")[0].partition(".")
        packet = getattr(ops.named, name)
        yield packet, getattr(packet, overload or "default")


def facts(ops, tag_name):
    found = []
    for packet, op in operators(ops):
        schema = op._schema
        found.append(
            {
                "name": (op.name(), op._name, op.namespace, op._opname, op._overloadname),
                "names": (op.__name__, packet.__name__, packet._qualified_op_name),
                "text": (str(op), str(packet)),
                "schema": (str(schema), schema.overload_name, schema.is_mutable),
                "is_view": op.is_view,
                "tags": [tag_name(tag) for tag in op.tags],
                "defaults": [each.default_value for each in schema.arguments],
                "has_default": [each.has_default_value() for each in schema.arguments],
                "sizes": [each.N for each in (*schema.arguments, *schema.returns)],
                "packet": op.overloadpacket is packet,
                "overloads": sorted(packet.overloads()),
                "copies": copy.deepcopy(op) is op and copy.deepcopy(packet) is packet,
                "kernels": [op.has_kernel_for_dispatch_key(key) for key in KEYS],
                "can_decompose": op._can_decompose(),
            }
        )
    return found


def test_operators_say_of_themselves_what_pytorchs_do(libraries):
    ours = facts(opdispatch.ops, str)
    for mine, other in zip(ours, facts(torch.ops, lambda tag: tag.name), strict=True):
        assert mine == other
    names = {schema.partition("(")[0].partition(".")[0] for schema in SCHEMAS}
    assert set(dir(opdispatch.ops.named)) == set(opdispatch.ops.named) == names
    assert names <= set(dir(torch.ops.named))


def test_the_tags_are_those_of_pytorch():
    assert set(opdispatch.Tag) == set(torch.Tag.__members__)
