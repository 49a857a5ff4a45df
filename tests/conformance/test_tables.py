"""Computed dispatch tables and dumped states, line by line as PyTorch prints them.

``golden/tables.json.gz`` was taken by ``record_tables.py``. All rows are compared; those of backend
fallbacks by kind (fallthrough or not) rather than by the place in PyTorch's sources.
"""

from random import Random

import pytest
from golden_file import read_golden

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DuplicateDefinitionError,
    KernelFunction,
    parse_dispatch_key,
    parse_schema,
)
from opdispatch.dispatch.dispatcher import normalize_key
from opdispatch.functionalities import BUILTIN_FALLBACKS
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS

GOLDEN = read_golden("tables.json.gz")
PROGRAMS = GOLDEN["programs"]
FALLBACKS = dict(line.split(": ", 1) for line in GOLDEN["fallbacks"])
ORDER = [str(key) for key in RUNTIME_KEYS]


def kernel(x):
    return x


class Replay:
    """A dispatcher in which a program is run, step by step."""

    def __init__(self, number):
        self.dispatcher = Dispatcher()
        self.schema = parse_schema(f"p{number}::foo(Tensor x) -> Tensor")
        self.handles = [self.dispatcher.register_def(self.schema, site="DEF:0")]
        self.op = self.dispatcher.get_schema(self.schema.name)

    def impl(self, number, key, falls_through):
        made = (
            KernelFunction.fallthrough() if falls_through else KernelFunction.from_unboxed(kernel)
        )
        name, site = self.schema.name, f"K{number}:{number}"
        key = parse_dispatch_key(key)
        self.handles.append(self.dispatcher.register_impl(name, key, made, site=site))

    def run(self, steps):
        """Do the steps; yield after each."""
        for step in steps:
            if step[0] == "undo":
                self.handles[1 + step[1]].close()
            else:
                self.impl(len(self.handles) - 1, *step[1:])
            yield

    def table(self):
        """The printed table without the places of the backend fallbacks."""
        return [without_place(line) for line in self.op.dump_table().splitlines()]


def without_place(line):
    if not line.endswith("[backend fallback]"):
        return line
    key, text = line.split(": ", 1)
    return f"{key}: {'fallthrough ' if text.startswith('fallthrough') else ''}[backend fallback]"


def golden_table(rows):
    """The lines PyTorch printed, without the places of the backend fallbacks."""
    lines = FALLBACKS | {key: text for keys, text in rows for key in keys.split()}
    return [without_place(f"{key}: {lines[key]}") for key in ORDER if key in lines]


def named(program):
    return "-".join(step[1] if step[0] == "impl" else f"undo{step[1]}" for step in program["steps"])


CASES = [pytest.param(n, program, id=f"{n}-{named(program)}") for n, program in enumerate(PROGRAMS)]


@pytest.mark.parametrize(("number", "program"), CASES)
def test_after_every_step_the_table_is_the_one_pytorch_printed(number, program):
    replay = Replay(number)
    for _, rows in zip(replay.run(program["steps"]), program["tables"], strict=True):
        assert replay.table() == golden_table(rows)
    assert replay.dispatcher.check_invariants() == []
    assert replay.op.dump_state().splitlines() == program["state"]
    for handle in reversed(replay.handles):
        handle.close()
    assert replay.dispatcher.operators() == []


def is_commutative(program):
    """Whether no step undoes, or registers a second kernel for a key (then the newest wins)."""
    if any(step[0] == "undo" for step in program["steps"]):
        return False
    keys = [normalize_key(parse_dispatch_key(step[1])) for step in program["steps"]]
    return len(set(keys)) == len(keys)


def test_kernels_for_different_keys_give_one_table_in_any_order():
    commutative = [(n, program) for n, program in enumerate(PROGRAMS) if is_commutative(program)]
    assert len(commutative) > 200
    for number, program in commutative:
        steps = list(enumerate(program["steps"]))
        Random(number).shuffle(steps)
        replay = Replay(number)
        for place, (_, *step) in steps:
            replay.impl(place, *step)
        assert replay.table() == golden_table(program["tables"][-1]), steps


def test_the_keys_with_a_fallback_from_the_start_are_those_of_pytorch():
    ours = {str(key): made.is_fallthrough for key, made in BUILTIN_FALLBACKS.items()}
    theirs = {key: text.startswith("fallthrough ") for key, text in FALLBACKS.items()}
    assert ours == theirs


# PyTorch takes a second fallback for this one; tests/unit/test_registry.py has what follows.
TAKES_A_SECOND = "AutogradPrivateUse1"


@pytest.mark.parametrize("key", sorted(FALLBACKS.keys() - {TAKES_A_SECOND}))
def test_a_second_fallback_for_such_a_key_is_refused(key):
    with pytest.raises(DuplicateDefinitionError, match=f"the dispatch key {key} has a fallback"):
        Dispatcher().register_fallback(parse_dispatch_key(key), KernelFunction.fallthrough())


def test_the_programs_reach_every_reason_and_every_key():
    texts = {text for p in PROGRAMS for rows in p["tables"] for _, text in rows}
    reasons = {text[text.rindex("[") + 1 : -1] for text in texts}
    assert reasons == {
        "kernel",
        "default backend kernel",
        "nested kernel",
        "math kernel",
        "ambiguous autogradother",
        "autograd kernel",
        "batched kernel",
    }
    keys = {key for p in PROGRAMS for rows in p["tables"] for k, _ in rows for key in k.split()}
    not_in_pytorch = {DispatchKey.ORT.name, DispatchKey.Named.name}
    # A live run as small as the golden files may miss a dozen, by its seed alone.
    assert len(set(ORDER) - not_in_pytorch - keys) < 20
