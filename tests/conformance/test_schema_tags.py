"""Definitions with the tags "out" and "inplace" are taken and refused as in PyTorch."""

import random

import pytest

from opdispatch import Dispatcher, Library, SchemaError

torch = pytest.importorskip("torch")

TYPES = ["Tensor", "Tensor(a)", "Tensor(a!)", "Tensor(b!)", "Tensor(a!)[]", "int"]
RETURNS = ["Tensor", "Tensor(a)", "Tensor(a!)", "Tensor(b!)", "Tensor(a!)[]"]
WRITTEN = ["Tensor(a!)", "Tensor(b!)"]


def random_schema(seed):
    rng = random.Random(seed)
    if rng.random() < 0.5:  # nearly what the tags ask for
        written = WRITTEN[: rng.randrange(1, 3)]
        types, star, returns = ["Tensor", *written], 1, list(written)
        if rng.random() < 0.5:
            types, star = written, rng.randrange(2)
        change = rng.choice([types, returns, []])
        if change:
            change[rng.randrange(len(change))] = rng.choice(RETURNS)
    else:
        types = rng.choices(TYPES, k=rng.randrange(4))
        star = rng.randrange(len(types) + 1)
        returns = rng.choices(RETURNS, k=rng.randrange(3))
    names = [f"{kind} x{place}" for place, kind in enumerate(types)]
    if star < len(names):
        names.insert(star, "*")
    return f"({', '.join(names)}) -> ({', '.join(returns)})"


@pytest.mark.parametrize("tag", ["out", "inplace"])
def test_schemas_with_a_tag_are_taken_as_in_pytorch(tag):
    ours = Library("tagged", "DEF", dispatcher=Dispatcher())
    theirs = torch.library.Library(f"tagged_{tag}", "DEF")
    taken = 0
    for seed in range(400):
        schema = f"f{seed}{random_schema(seed)}"
        try:
            theirs.define(schema, tags=getattr(torch.Tag, tag))
        except ValueError:
            with pytest.raises(SchemaError, match=f"has the tag '{tag}'"):
                ours.define(schema, tags=tag)
        else:
            ours.define(schema, tags=tag)
            taken += 1
    assert taken > 10
