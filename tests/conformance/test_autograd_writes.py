"""Writes, views, hooks and retained gradients beside PyTorch's, in random programs.

Programs calculate with a few small tensors, some of which require gradients: they take views, write
to them in every way, now and then under ``no_grad``, detach, copy, and register hooks. Values, what
requires gradients, versions, what is refused and gradients are compared.
"""

import operator
import random
from functools import partial

import numpy as np
import pytest
from golden_file import seeds

import opdispatch
from opdispatch import Tensor
from opdispatch import array_api as xp
from opdispatch.autograd import backward

torch = pytest.importorskip("torch")

OURS, THEIRS = opdispatch.no_grad, torch.no_grad
INDICES = [0, -1, slice(1, None), slice(None, None, 2), (..., 0), (None, 1), (slice(None), 1), ...]
UNARY = {
    "exp": (lambda x: xp.exp(x * 0.3), lambda x: torch.exp(x * 0.3)),
    "sin": (xp.sin, torch.sin),
    "negative": (operator.neg, operator.neg),
    "transpose": (xp.matrix_transpose, lambda x: x.transpose(-1, -2)),
    "detach": (lambda x: x.detach(), lambda x: x.detach()),
    "copy": (lambda x: +x, lambda x: x.clone()),
    "sum": (lambda x: xp.sum(x, axis=-1) if x.ndim else x * 1, lambda x: x.sum(-1)),
    "flatten": (lambda x: xp.reshape(x, (-1,)), lambda x: x.reshape(-1)),
    "unbind": (lambda x: x.unbind()[0] * 1, lambda x: x.unbind()[0] * 1),
}
BINARY = [operator.add, operator.sub, operator.mul, operator.matmul]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv]


class Program:
    """The same steps on both sides."""

    def __init__(self, seed):
        self.random, numbers = random.Random(seed), np.random.default_rng(seed)
        self.pairs = []
        self.versions = {}
        """Those of new pairs: PyTorch's matmul of a vector squeezes its result in place."""
        for place, shape in enumerate([(3, 3), (3,), (3, 3), ()]):
            array = numbers.uniform(0.5, 1.5, shape)
            requires_grad = place == 0 or self.random.random() < 0.5
            pair = (
                Tensor(array.copy(), requires_grad=requires_grad),
                torch.from_numpy(array.copy()).requires_grad_(requires_grad),
            )
            self.pairs.append(pair)

    def both(self, ours, theirs):
        """Return a step's results on both sides; None where both refuse it."""
        results, errors = [], []
        for call in (ours, theirs):
            try:
                results.append(call())
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                errors.append(error)
        assert len(errors) in (0, 2), errors
        return None if errors else results

    def drop_lost_views(self):
        """Views that no_grad has made of a written tensor: their history must not be asked for."""
        leaves = [
            self.both(partial(getattr, ours, "is_leaf"), partial(getattr, theirs, "is_leaf"))
            for ours, theirs in self.pairs
        ]
        assert all(found is None or found[0] == found[1] for found in leaves)
        known = zip(self.pairs, leaves, strict=True)
        self.pairs = [pair for pair, found in known if found is not None]

    def step(self):
        self.drop_lost_views()
        choose = self.random.choice
        (x, their_x), (y, their_y) = choose(self.pairs), choose(self.pairs)
        if their_x.is_leaf and self.random.random() < 0.8:  # which is often not to be written to
            x, their_x = self.pairs[-1]
        kind, index = (
            choose(
                ["unary", "binary", "view", "view", "write", "write", "in place", "hook", "leaf"]
            ),
            None,
        )
        if kind == "unary":
            ours, theirs = UNARY[choose(sorted(UNARY))]
            self.add(self.both(lambda: ours(x), lambda: theirs(their_x)))
        elif kind == "binary":
            function = choose(BINARY)
            self.add(self.both(lambda: function(x, y), lambda: function(their_x, their_y)))
        elif kind == "view":
            index = choose(INDICES)
            made = self.both(lambda: x[index], lambda: their_x[index])
            if self.random.random() < 0.2:
                with OURS(), THEIRS():
                    made = self.both(lambda: x[index], lambda: their_x[index])
            self.add(made)
        elif kind == "write":
            # PyTorch refuses to write to a tensor parts of its own.
            value = (0.5, 0.5) if self.random.random() < 0.5 else (+y, their_y.clone())
            self.write(x, their_x, *value, choose(INDICES), self.random.random() < 0.3)
        elif kind == "in place":
            function, by = choose(IN_PLACE), choose(["other", 2.0])
            one, other = (+y, their_y.clone()) if by == "other" else (by, by)
            self.both(lambda: function(x, one), lambda: function(their_x, other))
        elif kind == "leaf":
            if their_x.is_leaf:
                self.both(lambda: x.requires_grad_(), lambda: their_x.requires_grad_())
        elif their_x.requires_grad:
            self.both(lambda: x.retain_grad(), lambda: their_x.retain_grad())
            self.both(
                lambda: x.register_hook(lambda grad: grad * 2),
                lambda: their_x.register_hook(lambda grad: grad * 2),
            )

    def write(self, x, their_x, y, their_y, index, is_off):
        def on(side, written, value):
            def call():
                if not is_off:
                    written[index] = value
                    return
                with side():
                    written[index] = value

            return call

        self.both(on(OURS, x, y), on(THEIRS, their_x, their_y))

    def add(self, made):
        if made is not None and made[1].numel():
            ours, theirs = made
            self.pairs.append((ours, theirs))
            self.versions[id(ours)] = theirs._version - ours._version

    def finish(self):
        self.drop_lost_views()
        for ours, theirs in self.pairs:
            assert same(ours, theirs)
            assert ours.requires_grad == theirs.requires_grad
            version = theirs._version - self.versions.get(id(ours), 0)
            assert ours._version == version
        graded = [pair for pair in self.pairs if pair[1].requires_grad]
        roots = self.random.sample(graded, min(3, len(graded)))
        ours, theirs = [one for one, _ in roots], [other for _, other in roots]
        done = self.both(
            lambda: backward(ours, [xp.ones_like(each.detach()) for each in ours]),
            lambda: torch.autograd.backward(theirs, [torch.ones_like(each) for each in theirs]),
        )
        for one, other in self.pairs if done is not None else ():
            if other.is_leaf or other.retains_grad:
                assert (one.grad is None) == (other.grad is None)
                assert one.grad is None or same(one.grad, other.grad)


def same(ours, theirs):
    ours, theirs = ours.array, theirs.detach().numpy()
    return ours.shape == theirs.shape and np.allclose(
        ours, theirs, rtol=1e-8, atol=1e-8, equal_nan=True
    )


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("part", range(6))
def test_programs_that_write_are_those_of_pytorch(part):
    with np.errstate(all="ignore"):  # what is divided by may be zero
        for seed in seeds(300)[part::6]:
            program = Program(seed)
            for _ in range(program.random.randint(3, 10)):
                program.step()
            program.finish()
