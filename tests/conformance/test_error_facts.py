"""Errors carry what PyTorch's carry: each fact below stands in both texts.

``golden/errors.json.gz`` was taken by ``record_errors.py``, with the same registrations.
"""

import builtins

import numpy as np
import pytest
from golden_file import read_golden

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    Library,
    OpdispatchError,
    OperatorName,
    parse_schema,
)

GOLDEN = read_golden("errors.json.gz")
CASES = GOLDEN["cases"]
K = DispatchKey


def name_of(name):
    return OperatorName.parse(f"errors::{name}")


class Site:
    """The dispatcher in which ``record_errors.py``'s registrations are repeated."""

    def __init__(self):
        self.dispatcher = Dispatcher()
        self.dispatcher.register_library("errors", site="lib.py:1")
        for name in ("gpu(Tensor x)", "fall(Tensor x)", "mixed(Tensor x)"):
            self.define(f"{name} -> Tensor", 1)
        self.define("none(int x) -> int", 1)
        self.implement("gpu", K.CUDA)
        self.implement("fall", K.CPU, KernelFunction.fallthrough())
        self.implement("mixed", K.SparseCPU)
        self.implement("mixed", K.CompositeImplicitAutograd)
        self.implement_signed("late", 4)

    def define(self, text, line):
        schema = parse_schema(text).with_namespace("errors")
        return self.dispatcher.register_def(schema, site=f"lib.py:{line}")

    def implement(self, name, key, made=None, line=3):
        made = made or KernelFunction.from_unboxed(lambda x: x)
        return self.dispatcher.register_impl(name_of(name), key, made, site=f"lib.py:{line}")

    def implement_signed(self, name, line):
        made = KernelFunction.from_unboxed(lambda x: x, signature="(Tensor _0) -> Tensor _0")
        return self.implement(name, K.CPU, made, line)

    def redispatch(self, name, key):
        op = self.dispatcher.get_schema(name_of(name))
        return op.redispatch(DispatchKeySet.of(key), np.ones(1))

    def fallback_twice(self):
        for line in (1, 2):
            made = KernelFunction.from_fallback(lambda op, *args: args)
            self.dispatcher.register_fallback(K.CPU, made, site=f"lib.py:{line}")

    def library(self, kind, key=""):
        return Library("errors", kind, key, dispatcher=self.dispatcher)


# For each case: what fails here, and what both texts say.
FAILING = {
    "missing CPU": (
        lambda site: site.dispatcher.get_schema("errors::gpu")(np.ones(1)),
        ["errors::gpu", "CPU", "CUDA"],
    ),
    "missing SparseCPU": (
        lambda site: site.redispatch("gpu", K.SparseCPU),
        ["errors::gpu", "SparseCPU", "CUDA"],
    ),
    "no tensor": (
        lambda site: site.dispatcher.get_schema("errors::none")(1),
        ["errors::none", "tensor arguments"],
    ),
    "Meta": (lambda site: site.redispatch("gpu", K.Meta), ["errors::gpu", "Meta"]),
    "ambiguous": (
        lambda site: site.redispatch("mixed", K.AutogradOther),
        ["errors::mixed", "CompositeImplicitAutograd", "AutogradOther"],
    ),
    "fallthrough": (lambda site: site.redispatch("fall", K.CPU), ["fall"]),
    "not found": (
        lambda site: site.dispatcher.get_schema("errors::nothing"),
        ["errors::nothing"],
    ),
    "defined twice": (
        lambda site: site.define("gpu(Tensor x) -> Tensor", 2),
        ["errors::gpu", "lib.py:1", "lib.py:2"],
    ),
    "owned twice": (
        lambda site: site.dispatcher.register_library("errors", site="lib.py:2"),
        ["errors", "lib.py:1", "lib.py:2", "FRAGMENT"],
    ),
    "kernel mismatch": (
        lambda site: site.implement_signed("none", 2),
        [
            *("errors::none(int x) -> int", "(Tensor _0) -> Tensor _0", "lib.py:1", "lib.py:2"),
            *("argument 1", "int", "Tensor"),
        ],
    ),
    "definition mismatch": (
        lambda site: site.define("late(int x) -> Tensor", 2),
        [
            *("errors::late(int x) -> Tensor", "(Tensor _0) -> Tensor _0", "lib.py:4", "lib.py:2"),
            "argument 1",
        ],
    ),
    "fallback twice": (Site.fallback_twice, ["CPU", "lib.py:1", "lib.py:2"]),
    "wrong key": (lambda site: site.library("IMPL", "Nowhere"), ["dispatch key", "Nowhere"]),
    "wrong namespace": (
        lambda site: site.library("FRAGMENT").define("elsewhere::f(Tensor x) -> Tensor"),
        ["elsewhere", "errors"],
    ),
    "defined in IMPL": (
        lambda site: site.library("IMPL").define("f(Tensor x) -> Tensor"),
        ["IMPL", "define"],
    ),
    "fallback of a namespace": (
        lambda site: site.library("IMPL").fallback(lambda *args: args, "CPU"),
        ["errors", "fallback", "_"],
    ),
    "no schema": (lambda site: site.library("FRAGMENT").define("f"), ["schema"]),
}
# PyTorch's Python side raises AttributeError for the same; ours is an OperatorNotFoundError.
OTHER_BASE = {"not found": AttributeError}


def test_every_recorded_case_is_compared():
    assert FAILING.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_an_error_says_what_pytorchs_says_and_is_caught_like_it(case):
    failing, facts = FAILING[case]
    with pytest.raises(OpdispatchError) as caught:
        failing(Site())
    theirs, ours = CASES[case]["text"], str(caught.value)
    assert [fact for fact in facts if fact not in theirs] == []
    assert [fact for fact in facts if fact not in ours] == []
    base = OTHER_BASE.get(case) or getattr(builtins, CASES[case]["class"])
    assert isinstance(caught.value, base)


def test_implementation_without_a_definition_is_listed():
    site = Site()
    [name] = site.dispatcher.find_dangling_impls()
    [dumped] = GOLDEN["dangling"]
    assert site.dispatcher.find_op(name).dump_state() == dumped
    with pytest.raises(OpdispatchError, match="did you forget to define"):
        site.dispatcher.get_schema(name)
