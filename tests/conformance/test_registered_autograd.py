"""``register_autograd`` beside PyTorch's, in random programs.

A program defines an operator of a random signature, registers a backward for it, calls it with
tensors that require gradients and others, and goes back. Compared are what the functions are given,
what they have kept, which results require gradients, and the gradients.
"""

import random

import pytest
from autograd_sides import OURS, THEIRS, leaf, outcome, plain
from golden_file import seeds

ARGUMENTS = [
    "Tensor",
    "Tensor",
    "Tensor",
    "Tensor?",
    "Tensor[]",
    "Tensor[]?",
    "int",
    "str",
    "int[]",
]
KEYWORDS = ["", "", ", *, int n", ", *, float n=2.0"]
RETURNS = ["Tensor", "Tensor", "Tensor", "Tensor[]", "Tensor?", "int"]
MADE = ["new", "new", "new", "integers", "constant", "argument", "none"]
KEYS = ["CPU", "CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"]
WAYS = ["backward", "twice", "grad", "create_graph", "first", "no_grad", "hook"]


def random_program(seed):
    choose, chance = (rng := random.Random(seed)).choice, rng.random
    types = [choose(ARGUMENTS) for _ in range(rng.randrange(1, 4))]
    if "Tensor" not in types:
        types[0] = "Tensor"
    returns = [choose(RETURNS) for _ in range(choose([1, 1, 1, 2, 3]))]
    return {
        "types": types,
        "keyword": choose(KEYWORDS),
        "returns": returns,
        "made": [[choose(MADE), choose(MADE)] for _ in returns],
        "tensors": [choose(["leaf", "leaf", "result", "plain", "integers"]) for _ in range(8)],
        "is_none": chance() < 0.3,
        "keeps": [choose(["argument", "result", "other"]) for _ in range(rng.randrange(3))],
        "has_setup": chance() < 0.85,
        "materializes": chance() < 0.75,
        "gives": [choose(["full", "full", "full", "full", "none", "long"]) for _ in types],
        "left_out": chance() < 0.05,
        "key": choose(KEYS),
        "way": choose(WAYS),
    }


def tensors_in(side, value):
    """The tensors in it, one by one."""
    if isinstance(value, side.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_in(side, each)]
    return []


def real(side, value):
    return [each for each in tensors_in(side, value) if "int" not in str(each.dtype)]


class Run:
    """A program on one side; ``seen`` is what is compared."""

    def __init__(self, side, program, name):
        self.side, self.program, self.seen, self.leaves = side, program, [], []
        self.left = iter(program["tensors"])
        types = ", ".join(f"{kind} a{n}" for n, kind in enumerate(program["types"]))
        returns = ", ".join(program["returns"])
        library = self.library = side.Library("registered", "FRAGMENT")  # PyTorch's is to be kept
        library.define(f"{name}({types}{program['keyword']}) -> ({returns})")
        library.impl(name, self.kernel, program["key"])
        setup = {"setup_context": self.setup_context} if program["has_setup"] else {}
        side.library.register_autograd(f"registered::{name}", self.backward, lib=library, **setup)
        self.op = getattr(side.ops.registered, name)

    def see(self, what, value):
        flags = [each.requires_grad for each in tensors_in(self.side, value)]
        self.seen.append((what, plain(value), flags))

    def kernel(self, *args, n=0):
        product = self.side.tensor(1, 1)
        for each in real(self.side, args):
            product = product * each.detach()

        def made(kind, by):
            return {
                "new": lambda: product * by,
                "integers": lambda: self.side.integers(4, 5),
                "constant": lambda: self.side.tensor(9, 8),
                "argument": lambda: tensors_in(self.side, args)[0],
                "none": lambda: product + 0,
            }[kind]()

        results = []
        for by, (kind, names) in enumerate(
            zip(self.program["returns"], self.program["made"], strict=True), 1
        ):
            one, other = names
            is_none = kind == "Tensor?" and one == "none"
            results.append(
                {
                    "int": lambda: 7,
                    "Tensor[]": lambda by=by, one=one, other=other: [made(one, by), made(other, 9)],
                }.get(kind, lambda by=by, one=one, n=is_none: None if n else made(one, by))()
            )
        return results[0] if len(results) == 1 else tuple(results)

    def setup_context(self, ctx, inputs, output, **keywords):
        self.seen.append(plain(output))
        self.seen.append((len(inputs), sorted(keywords)))
        kept = {
            "argument": tensors_in(self.side, inputs)[0],
            "result": [*tensors_in(self.side, output), None][0],
            "other": self.side.tensor(3, 3),
        }
        ctx.save_for_backward(*(kept[each] for each in self.program["keeps"]))
        ctx.set_materialize_grads(self.program["materializes"])

    def backward(self, ctx, *grads):
        self.see("gradients", grads)
        self.seen.append(ctx.needs_input_grad)
        total = self.side.tensor(0, 0)
        for each in real(self.side, grads):
            total = total + each
        if self.program["has_setup"]:
            self.see("kept", list(ctx.saved_tensors))
            for each in real(self.side, ctx.saved_tensors[:1]):
                total = total * each
        found = [
            self.gradient(kind, value, how, total)
            for kind, value, how in zip(
                self.program["types"], self.args, self.program["gives"], strict=True
            )
        ]
        found = found[1:] if self.program["left_out"] else found
        return found[0] if len(found) == 1 else tuple(found)

    def gradient(self, kind, value, how, total):
        if "Tensor" not in kind or value is None:
            return None
        if isinstance(value, list):
            return [None if how == "none" else total for _ in value]
        return {"none": None, "long": self.side.tensor(1, 2, 3)}.get(how, total * 2)

    def tensor(self):
        kind, number = next(self.left), len(self.leaves) + 1.0
        if kind in ("leaf", "result"):
            leaf = self.side.tensor(number, number + 1).requires_grad_()
            self.leaves.append(leaf)
            return leaf if kind == "leaf" else leaf * 1
        return self.side.integers(1, 2) if kind == "integers" else self.side.tensor(3, number)

    def argument(self, kind):
        if kind.endswith("?") and self.program["is_none"]:
            return None
        if "Tensor" in kind:
            return [self.tensor(), self.tensor()] if "[" in kind else self.tensor()
        return {"int": 3, "str": "a", "int[]": [1, 2]}[kind]

    def __call__(self):
        self.args = [self.argument(kind) for kind in self.program["types"]]
        keywords = {"n": 5} if "int" in self.program["keyword"] else {}
        is_off = self.program["way"] == "no_grad"
        with self.side.no_grad() if is_off else self.side.enable_grad():
            results = self.op(*self.args, **keywords)
        self.see("results", results)
        found = tensors_in(self.side, results)
        self.seen += [(each.is_leaf, each.grad_fn is None) for each in found]
        self.go_back([each for each in found if each.requires_grad])
        return self.seen

    def go_back(self, results):
        side, way = self.side, self.program["way"]
        if way == "hook":
            for each in results:
                each.register_hook(lambda grad: (self.see("hook", grad), grad * 2)[1])
        results = results[:1] if way == "first" else results
        if not results or not self.leaves:
            return
        total = sum(side.sum(each * each * by) for by, each in enumerate(results, 1))
        if way == "create_graph":
            first = side.grad(total, self.leaves, create_graph=True, allow_unused=True)
            self.see("first", first)
            recorded = [each for each in first if each is not None and each.requires_grad]
            if recorded:
                again = sum(side.sum(each * each) for each in recorded)
                self.see("second", side.grad(again, self.leaves, allow_unused=True))
        elif way == "grad":
            self.see("grad", side.grad(total, self.leaves))
        else:
            side.backward([total], retain_graph=way == "twice")
            if way == "twice":
                side.backward([total])
            self.see("grad", [leaf.grad for leaf in self.leaves])


def is_kept_otherwise(program):
    """Return whether a case is written differently here: an argument that is a result is kept as
    the result.
    """
    has_setup = program["has_setup"] and "result" in program["keeps"]
    return has_setup and any("argument" in names for names in program["made"])


@pytest.mark.parametrize("seed", seeds(200))
def test_registered_derivatives_are_those_of_pytorch(seed):
    program = random_program(seed)
    if is_kept_otherwise(program):
        program["made"] = [["new", "new"] for _ in program["made"]]
    name = f"f{seed}"
    (ours, found), (theirs, expected) = (
        outcome(lambda side: Run(side, program, name)(), side) for side in (OURS, THEIRS)
    )
    assert ours == theirs, (program, found, expected)
    assert ours == "refused" or found == expected, program


OPTIONAL = ["Tensor? t=None", "int n=2", "float s=1.5", "bool b=True", "int[] sizes=[1, 2]"]
GIVEN = {"t": [None, "leaf", "plain"], "n": [2, 3], "s": [1.5, 2], "b": [True, 1, False]}
GIVEN["sizes"] = [[1, 2], (1, 2), [3]]


def run_with_defaults(side, seed, name):
    """Return what backward knows of arguments with their default, and how many gradients it owes.

    PyTorch takes as many as there are arguments but for trailing ones that have their default, and
    more that are None.
    """
    rng = random.Random(seed)
    optional = rng.sample(OPTIONAL, rng.randrange(1, 4))
    library = side.Library("registered", "FRAGMENT")
    library.define(f"{name}(Tensor x, {', '.join(optional)}) -> Tensor")
    library.impl(name, lambda x, *others: x.detach() * 1, "CPU")
    names = [each.partition("=")[0].split()[-1] for each in optional]
    args = [rng.choice(GIVEN[each]) for each in names[: rng.randrange(len(names) + 1)]]
    makes = {"leaf": lambda: side.tensor(1, 2).requires_grad_(), "plain": lambda: side.tensor(1, 2)}
    args = [makes.get(each, lambda e=each: e)() if isinstance(each, str) else each for each in args]
    surplus = rng.choice([0, 0, 0, len(names) + 1, 1])
    seen = []

    def setup_context(ctx, inputs, output):
        seen.append([plain(each) for each in inputs])

    def backward(ctx, grad):
        seen.append(ctx.needs_input_grad)
        owed = max(len(ctx.needs_input_grad), surplus)
        return (grad * 2, *[None] * (owed - 1)) if owed > 1 else grad * 2

    side.library.register_autograd(
        f"registered::{name}", backward, setup_context=setup_context, lib=library
    )
    x = leaf(side, 1, 2)
    side.sum(getattr(side.ops.registered, name)(x, *args)).backward()
    return seen, plain(x.grad), library


@pytest.mark.parametrize("seed", seeds(100))
def test_trailing_arguments_with_their_default_are_left_out_as_in_pytorch(seed):
    *ours, kept = run_with_defaults(OURS, seed, f"with_defaults_{seed}")
    *theirs, also_kept = run_with_defaults(THEIRS, seed, f"with_defaults_{seed}")
    assert ours == theirs
    kept.close()
    also_kept._destroy()
