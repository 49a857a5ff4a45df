"""Schemas, text by text as PyTorch reads and prints them.

``golden/schemas.json.gz`` was taken by ``record_schemas.py``, which says what the verdicts mean.
What we do otherwise on purpose is written down in two notes, [Printed schemas read back] in
function_schema.py and [Deliberate differences from PyTorch's parser] in schema/parser.py.
"""

import re

import numpy as np
import pytest
from golden_file import read_golden
from infer_cases import define
from schema_texts import with_sorted_alias_sets

from opdispatch.errors import SchemaError
from opdispatch.library.infer_schema import Device, infer_schema
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.parser import parse_schema
from opdispatch.tensors.tensor import Tensor

GOLDEN = read_golden("schemas.json.gz")
KINDS = ["real", "mutated", "random", "probes"]


def parse_or_none(text: str) -> FunctionSchema | None:
    try:
        return parse_schema(text)
    except SchemaError:
        return None


def is_deliberate(text: str) -> bool:
    """Whether PyTorch may refuse a text that we accept: it must know the classes it names."""
    return "__torch__" in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_texts_that_pytorch_accepts_are_accepted_and_no_others(kind):
    wrong = [
        text
        for text, verdict in GOLDEN[kind]
        if (parse_or_none(text) is None) != (verdict is None) and not is_deliberate(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_printed_as_pytorch_prints_them_where_it_can_read_that(kind):
    differing = []
    for text, verdict in GOLDEN[kind]:
        schema = parse_or_none(text)
        if verdict and schema is not None:
            theirs = text if verdict is True else verdict
            # In order, as the recorder has them: it cannot tell an alias set from a string.
            if with_sorted_alias_sets(str(schema)) != with_sorted_alias_sets(theirs):
                differing.append((text, str(schema), theirs))
    assert differing == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_printed_schema_reads_back_as_the_same_schema(kind):
    schemas = [schema for text, _ in GOLDEN[kind] if (schema := parse_or_none(text)) is not None]
    assert len(schemas) > 300  # of random texts, some 443 are schemas, give or take 22
    for schema in schemas:
        assert parse_schema(str(schema)) == schema


def test_few_texts_are_exempt_from_the_comparison():
    """The exemptions must not grow into a hole: nearly all texts are compared."""
    texts = [(text, verdict) for kind in KINDS for text, verdict in GOLDEN[kind]]
    decided_differently = [t for t, v in texts if (parse_or_none(t) is None) != (v is None)]
    assert len(texts) > 14_000
    assert len(decided_differently) < len(texts) / 100
    assert len(GOLDEN["mutated"]) >= 6000
    assert sum(verdict is False for _, verdict in GOLDEN["real"]) == 0
    assert sum(verdict is False for _, verdict in GOLDEN["mutated"]) < len(GOLDEN["mutated"]) / 100


# Defaults that kernels get in another form than PyTorch keeps them.
IN_OUR_FORM = re.compile(r"ScalarType|Layout|MemoryFormat|Device")


def test_arguments_have_what_pytorch_says_they_have():
    pairs = [
        pair
        for text, theirs in GOLDEN["details"].items()
        if not is_deliberate(text)
        for pair in zip(parse_schema(text).arguments, theirs, strict=True)
    ]
    assert len(pairs) > 700
    for argument, expected in pairs:
        assert argument.name == expected["name"]
        assert argument.has_default == expected["has_default"]
        assert argument.kwarg_only == expected["kwarg_only"]
        assert argument.is_write == expected["is_write"]
        assert argument.is_out == expected["is_out"]
        alias = argument.alias_info
        assert (sorted(alias.before_set) if alias else None) == expected["before"]
        assert (sorted(alias.after_set) if alias else None) == expected["after"]
        if argument.has_default and not IN_OUR_FORM.search(str(argument.type)):
            default = argument.default
            shown = list(default) if isinstance(default, tuple) else default
            # `float x=long` is 4 for PyTorch, and 4.0 for us.
            assert repr(shown) == expected["default"] or shown == float(expected["default"])


def test_schemas_are_equal_where_pytorch_finds_them_equal():
    recorded = GOLDEN["equal"]
    schemas = [parse_schema(f"t::f{signature}") for signature, _ in recorded]
    for schema, (signature, equal) in zip(schemas, recorded, strict=True):
        assert [i for i, other in enumerate(schemas) if other == schema] == equal, signature
        assert {hash(schemas[place]) for place in equal} == {hash(schema)}


def test_signatures_differ_where_pytorch_finds_a_kernel_to_differ():
    kernel = parse_schema("f(Tensor _0) -> Tensor _0")
    for number, (signature, agrees) in enumerate(GOLDEN["differences"]):
        schema = parse_schema(f"f{number}{signature}")
        assert (schema.find_differences(kernel) is None) == agrees, signature


@pytest.mark.parametrize("case", GOLDEN["inferred"], ids=lambda case: case["source"])
def test_schemas_are_inferred_as_pytorch_infers_them(case):
    words = {"Tensor": Tensor, "dtype": np.dtype, "float32": np.float32, "device": Device}
    function = define(case["source"], words)
    try:
        ours = infer_schema(function, **case["options"])
    except SchemaError:
        ours = None
    if case["schema"] is None and ours is not None:
        assert case["source"] in INFERRED_BY_US_ALONE
    else:
        assert ours == case["schema"]


# The schema language has more than PyTorch's inference makes use of.
INFERRED_BY_US_ALONE = {
    "def f(x: List['Tensor']) -> None: ...",
    "def f(x: Optional['device']) -> None: ...",
}


def test_types_have_pytorchs_texts():
    torch = pytest.importorskip("torch")
    text = (
        "f(SymInt a, ScalarType? b, MemoryFormat? c, Layout[] d, SymInt[]? e, Tensor?[] f,"
        " Device? g, Scalar h, (SymInt, Tensor) i, Dict(str, int) j, Tensor(a!)[] k)"
        " -> (SymInt, float?)"
    )
    ours, theirs = parse_schema(text), torch._C.parse_schema(text)
    for our, their in zip(
        [*ours.arguments, *ours.returns], [*theirs.arguments, *theirs.returns], strict=True
    ):
        assert our.real_type.str() == their.real_type.str(), our
        assert our.type.plain.str() == their.type.str(), our
        assert our.type is our.real_type
