"""Definitions with the tags "out" and "inplace" are taken, refused and inferred as in PyTorch."""

import random

import pytest
from golden_file import seeds
from infer_cases import define

from opdispatch import Dispatcher, Library, SchemaError, Tensor
from opdispatch.library import infer_schema

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
    for seed in seeds(400):
        schema = f"f{seed}{random_schema(seed)}"
        try:
            theirs.define(schema, tags=getattr(torch.Tag, tag))
        except ValueError:
            with pytest.raises(SchemaError, match=f"has the tag '{tag}'"):
                ours.define(schema, tags=tag)
        else:
            ours.define(schema, tags=tag)
            taken += 1
    assert taken


ANNOTATIONS = ["Tensor", "Tensor", "Tensor", "Optional[Tensor]", "list[Tensor]", "int"]
ANNOTATED_RETURNS = ["Tensor", "Tensor", "Tensor", "None", "int", "list[Tensor]"]


def random_function(seed):
    """The source of a function, and which of its arguments it writes to."""
    rng = random.Random(seed)
    names = [f"x{place}" for place in range(rng.randrange(4))]
    kinds = rng.choice([ANNOTATIONS, ANNOTATIONS[:1]])
    parameters = [f"{name}: {rng.choice(kinds)}" for name in names]
    written = [name for name in names if rng.random() < 0.5]
    star = rng.randrange(len(names) + 1)
    if star < len(names):
        parameters.insert(star, "*")
    count = rng.choice([1, 1, 2, len(written)])
    returns = rng.choice(ANNOTATED_RETURNS)
    if count > 1 or rng.random() < 0.1:
        returns = (
            f"tuple[{', '.join(rng.choice(ANNOTATED_RETURNS[:4]) for _ in range(count or 1))}]"
        )
    source = f"def f({', '.join(parameters)}) -> {returns}: ..."
    return source, rng.choice([written, written, written, "unknown"])


@pytest.mark.parametrize("tags", [(), ("out",), ("inplace",), ("out", "core"), ("out", "inplace")])
def test_schemas_are_inferred_with_tags_as_in_pytorch(tags):
    theirs = tuple(getattr(torch.Tag, tag) for tag in tags)
    inferred = 0
    for seed in seeds(1000):
        source, mutates_args = random_function(seed)
        ours = define(source, {"Tensor": Tensor})
        try:
            expected = torch.library.infer_schema(
                define(source, {"Tensor": torch.Tensor}), mutates_args=mutates_args, tags=theirs
            )
        except (ValueError, AssertionError):
            with pytest.raises(SchemaError):
                print(
                    source, mutates_args, infer_schema(ours, mutates_args=mutates_args, tags=tags)
                )
        else:
            found = infer_schema(ours, mutates_args=mutates_args, tags=tags)
            assert found == expected, (source, mutates_args)
            inferred += 1
    assert inferred or tags == ("out", "inplace")
