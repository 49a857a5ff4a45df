"""The kernels that calls visit, one after the other, as in PyTorch.

``golden/calls.json.gz`` was taken by ``record_calls.py``, which says what is in it. Tensors of ours
are given the key sets of PyTorch's, or have them. Every call is made three times, the last time
boxed: what the first has taught the dispatcher must not change what the second does.
"""

import contextlib

import numpy as np
import pytest
from call_programs import MODES, TENSORS, World
from golden_file import read_golden

import opdispatch.array_library  # noqa: F401
from opdispatch import (
    AmbiguousKernelError,
    Dispatcher,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    Library,
    NoKernelError,
    OpdispatchError,
    Tensor,
    autocast,
    enable_grad,
    fallthrough_kernel,
    inference_mode,
    local_dispatch_key_set,
    no_grad,
    ops,
    parse_dispatch_key,
)

GOLDEN = read_golden("calls.json.gz")
PROGRAMS = GOLDEN["programs"]
CALLS = [call for program in PROGRAMS for call in program["calls"]]
TENSOR = {n: Tensor(np.ones(2), keys=DispatchKeySet(w)) for n, w in GOLDEN["tensors"].items()}
# Of those that have them for what their elements are not yet, fallbacks make others without them.
TENSOR |= {
    "conj": ops.array._conj(Tensor(np.ones(2, np.complex64))),
    "neg": ops.array._neg_view(Tensor(np.ones(2, np.float32))),
    "zero": Tensor._efficientzerotensor((2,)),
}
GUARDS = {
    "include": lambda included, excluded: IncludeDispatchKeyGuard(key_set(*included)),
    "exclude": lambda included, excluded: ExcludeDispatchKeyGuard(key_set(*excluded)),
    "force": lambda included, excluded: ForceDispatchKeyGuard(
        key_set(*included), key_set(*excluded)
    ),
    "inference_mode": lambda *_: inference_mode(),
    "inference_mode(False)": lambda *_: inference_mode(False),
    "no_grad": lambda *_: no_grad(),
    "enable_grad": lambda *_: enable_grad(),
    "autocast": lambda *_: autocast("cpu"),
}


def key_set(*keys):
    return DispatchKeySet.of(*map(parse_dispatch_key, keys))


class OurWorld(World):
    def __init__(self, program):
        super().__init__()
        dispatcher = Dispatcher()
        fallbacks = Library("_", "IMPL", dispatcher=dispatcher)
        for key, action in program["fallbacks"]:
            fallbacks.fallback(self.made(f"_{key}", None, action), key, with_keyset=True)
        library = Library("calls", "DEF", dispatcher=dispatcher)
        for number, kernels in enumerate(program["operators"]):
            library.define(f"f{number}({program['signature']}) -> ()")
            for key, action in kernels:
                library.impl(f"f{number}", self.made(key, number, action), key, with_keyset=True)
        self.dispatcher = dispatcher
        self.ops = [dispatcher.get_schema(f"calls::f{n}") for n in range(3)]
        self.boxed = False

    def made(self, label, number, action):
        if action == ["fallthrough"]:
            return fallthrough_kernel
        return self.kernel(label, number, action)

    def word_after(self, key):
        return DispatchKeySet.full_after(parse_dispatch_key(key)).raw_repr()

    def local_words(self):
        included, excluded = local_dispatch_key_set()
        return included.raw_repr(), excluded.raw_repr()

    def excluding(self, key):
        return ExcludeDispatchKeyGuard(parse_dispatch_key(key))

    def call(self, number, args):
        op = self.ops[number]
        if self.boxed:
            op.call_boxed(op.bind(args, {}))
        else:
            op(*args)

    def redispatch(self, number, word, args):
        op, keys = self.ops[number], DispatchKeySet(word)
        if self.boxed:
            op.redispatch_boxed(keys, op.bind(args, {}))
        else:
            op.redispatch(keys, *args)

    def number_of(self, op):
        return [o.name for o in self.ops].index(op.name)


def values_of(argument):
    if isinstance(argument, list):
        return [values_of(a) for a in argument]
    return TENSOR[argument] if isinstance(argument, str) else argument


def run(world, call):
    """The visits of a call, and the error it raised or None."""
    world.visits.clear()
    args = [values_of(a) for a in call["arguments"]]
    try:
        with contextlib.ExitStack() as stack:
            for mode, included, excluded in call["modes"]:
                stack.enter_context(GUARDS[mode](included, excluded))
            if call["how"] == ["call"]:
                world.call(0, args)
            else:
                world.redispatch(0, key_set(*call["how"][1:]).raw_repr(), args)
    except OpdispatchError as error:
        return list(world.visits), error
    return list(world.visits), None


def outcome_of(error, recorded):
    """Return the error raised, in the terms of the recorder."""
    match error:
        case None:
            return None
        case AmbiguousKernelError():
            return ["ambiguous"]
        case NoKernelError() if "falls through" in str(error):
            return ["fallthrough"]
        case NoKernelError() if recorded and recorded[0] == "refused":
            # A fallback of PyTorch refuses, in words of its own; ours names the key.
            return recorded
    return ["no kernel", error.facts["key"]]


CASES = [pytest.param(program, id=str(n)) for n, program in enumerate(PROGRAMS)]


@pytest.mark.parametrize("program", CASES)
def test_calls_visit_the_kernels_that_they_visit_in_pytorch(program):
    world = OurWorld(program)
    for call in program["calls"]:
        for boxed in (False, False, True):
            world.boxed = boxed
            visits, error = run(world, call)
            assert visits == call["visits"], (call, error)
            assert outcome_of(error, call["outcome"]) == call["outcome"], call
    assert world.dispatcher.check_invariants() == []


def test_tensors_have_the_keys_of_pytorchs():
    assert {n: each.key_set.raw_repr() for n, each in TENSOR.items()} == GOLDEN["tensors"]


def test_the_calls_are_of_every_kind():
    assert len(CALLS) > 2500
    assert sum(len(call["visits"]) for call in CALLS) > 3000
    assert {mode[0] for call in CALLS for mode in call["modes"]} == set(GUARDS) >= set(MODES)
    served = [str(call["arguments"]) for call in CALLS if call["visits"]]
    assert all(any(f"'{name}'" in arguments for arguments in served) for name in TENSORS)
    outcomes = {call["outcome"][0] for call in CALLS if call["outcome"]}
    assert outcomes == {"no kernel", "fallthrough", "ambiguous", "refused"}
