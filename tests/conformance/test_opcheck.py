"""``opcheck`` beside PyTorch's: of random operators, right and wrong, both find the same wrong.

Where the schema is wrong, what else is found differs: PyTorch's fake tensors share storages, ours
share what the schema says. PyTorch transforms no operators that give views, and its operators
without a derivative end the backward pass without an error.
"""

import random
import warnings

import pytest
from autograd_sides import OURS, THEIRS
from golden_file import seeds

import opdispatch
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")

MADE = ["copy", "copy", "copy", "copy", "copy", "argument", "view", "same view", "of the last"]
FAKES = ["right", "right", "right", "right", "none", "longer", "floats", "fewer"]
DERIVATIVES = ["none", "none", "registered", "registered", "in the backend"]


def random_program(seed):
    rng = random.Random(seed)
    arguments = rng.randrange(1, 4)
    returns = rng.randrange(1, 4)
    declared = [rng.choice(["", "", "", "!", "view"]) for _ in range(arguments)]
    views = [place for place, kind in enumerate(declared) if kind == "view"]
    returned = [rng.choice([None, None, *views]) for _ in range(returns)]
    is_list = rng.random() < 0.2
    # Both register derivatives for no others.
    is_functional = "!" not in declared and set(returned) == {None}
    return {
        "declared": declared,
        "written": [kind == "!" or rng.random() < 0.1 for kind in declared],
        "returned": returned,
        "made": [
            (rng.choice(MADE[:-1] if is_list else MADE), rng.randrange(arguments))
            for _ in range(returns)
        ],
        "is_list": is_list,
        "fake": rng.choice(FAKES),
        "derivative": rng.choice(DERIVATIVES if is_functional else DERIVATIVES[:1]),
        "requires_grad": [rng.random() < 0.4 for _ in range(arguments)],
    }


def schema_of(program):
    mark = {"": "", "!": "(a{}!)", "view": "(a{})"}
    arguments = [f"Tensor{mark[kind].format(n)} x{n}" for n, kind in enumerate(program["declared"])]
    if program["is_list"]:
        return f"({', '.join(arguments)}) -> Tensor[]"
    returns = ["Tensor" if n is None else f"Tensor(a{n})" for n in program["returned"]]
    return f"({', '.join(arguments)}) -> ({', '.join(returns)})"


class Operator:
    """The operator of a program, on one side."""

    def __init__(self, side, program, name):
        self.side, self.program = side, program
        library = self.library = side.Library("opchecked", "FRAGMENT")
        library.define(f"{name}{schema_of(program)}")
        library.impl(name, self.kernel, "CPU")
        if program["fake"] != "none":
            library.impl(name, self.fake, "Meta")
        if program["derivative"] == "registered":
            side.library.register_autograd(f"opchecked::{name}", self.backward, lib=library)
        self.op = getattr(side.ops.opchecked, name).default

    def result(self, results):
        if self.program["is_list"]:
            return list(results)
        return results[0] if len(results) == 1 else tuple(results)

    def kernel(self, *args):
        for written, each in zip(self.program["written"], args, strict=True):
            if written:  # the elements alone: nothing that is recorded
                (each.array if self.side is OURS else each.detach())[:] += 1
        results = []
        for how, place in self.program["made"]:
            given = args[place]
            copy = given * 2 if self.is_recorded else self.elements(given.detach())
            results.append(
                {
                    "copy": lambda copy=copy: copy,
                    "argument": lambda given=given: given,
                    "view": lambda given=given: self.view(given, 1),
                    "same view": lambda given=given: self.view(given, 0),
                    "of the last": lambda copy=copy: self.view(results[-1], 0) if results else copy,
                }[how]()
            )
        return self.result(results)

    @property
    def is_recorded(self):
        return self.program["derivative"] == "in the backend"

    def elements(self, tensor):
        return opdispatch.Tensor(tensor.array * 2) if self.side is OURS else tensor * 2

    def view(self, tensor, start):
        return (
            opdispatch.Tensor(tensor.array[start:])
            if self.side is OURS
            else tensor.detach()[start:]
        )

    def fake(self, *args):
        kind, results = self.program["fake"], []
        for number, (how, place) in enumerate(self.program["made"]):
            given = args[place]
            length = given.shape[0] - (how == "view")
            if how == "of the last" and results:
                length = results[-1].shape[0]
            wrong = number == 0
            results.append(self.made(given, length + (kind == "longer" and wrong), kind, wrong))
        return self.result(results[1:] if kind == "fewer" and len(results) > 1 else results)

    def made(self, like, length, kind, wrong):
        if self.side is OURS:
            dtype = xp.float32 if kind == "floats" and wrong else like.dtype
            return xp.empty((length,), dtype=dtype, device="meta")
        dtype = torch.float32 if kind == "floats" and wrong else like.dtype
        return like.new_empty((length,), dtype=dtype)

    def backward(self, ctx, *grads):
        if self.program["is_list"]:
            grads = grads[0]
        gradients = [None] * len(self.program["declared"])
        for (_, place), grad in zip(self.program["made"], grads, strict=True):
            gradients[place] = grad * 2 if gradients[place] is None else gradients[place] + grad * 2
        return tuple(gradients)

    def check(self):
        check = opdispatch.opcheck if self.side is OURS else torch.library.opcheck
        tensors = [self.side.tensor(1.0, 2.0, 3.0) for _ in self.program["declared"]]
        for tensor, requires_grad in zip(tensors, self.program["requires_grad"], strict=True):
            tensor.requires_grad_(requires_grad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = check(self.op, tuple(tensors), raise_exception=False)
        return {name: result == "SUCCESS" for name, result in found.items()}, found


def is_transformed_by_both(program):
    marks = set(program["declared"]) - {""}
    no_derivative = program["derivative"] != "registered" and any(program["requires_grad"])
    return "view" not in marks and not (marks and program["is_list"]) and not no_derivative


@pytest.mark.parametrize("seed", seeds(150))
def test_both_find_the_same_wrong(seed):
    program = random_program(seed)
    name = f"f{seed}"
    (ours, why), (theirs, their_why) = (
        Operator(side, program, name).check() for side in (OURS, THEIRS)
    )
    said = (schema_of(program), program, why, their_why)
    assert ours["test_schema"] == theirs["test_schema"], said
    assert ours["test_autograd_registration"] == theirs["test_autograd_registration"], said
    if not ours["test_schema"] or set(program["returned"]) != {None}:
        return
    assert ours["test_faketensor"] == theirs["test_faketensor"], said
    if ours["test_faketensor"] and ours["test_autograd_registration"]:
        name = "test_aot_dispatch_dynamic"
        assert not is_transformed_by_both(program) or ours[name] == theirs[name], said
