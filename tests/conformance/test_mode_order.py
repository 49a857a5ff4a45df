"""The order of modes, classes of tensors and their calls, compared with PyTorch.

Each side has the same modes and the same classes, which note who was asked for which operator, of
which classes, and what was excluded there; and functions registered in their place. Programs are
random.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    FlopCounterMode,
    Library,
    Tensor,
    arrays,
    local_dispatch_key_set,
)
from opdispatch import TorchDispatchMode as OurMode
from opdispatch import array_api as xp
from opdispatch.arrays import tensor_types

torch = pytest.importorskip("torch")
TheirMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode

NAMESPACES = (f"modes_{n}" for n in itertools.count())
SCHEMAS = ("f(Tensor x, Tensor y) -> Tensor", "g(Tensor x, Tensor y) -> Tensor", "make() -> Tensor")
# What a mode or a class does when it is asked.
BEHAVIOURS = ("calls", "declines", "calls another", "answers", "fails", "calls twice")


class HandlerError(Exception):
    """Raised by handlers."""


def handle(notes, who, behaviour, func, types, args, unwrap, side):
    """The body of every handler, on either side."""
    name = side.name_of(func)
    notes.append((who, name, [cls.__name__ for cls in types], side.excluded()))
    plain = [unwrap(each) for each in args]
    if behaviour == "declines":
        return NotImplemented
    if behaviour == "fails":
        raise HandlerError
    if behaviour == "answers":
        return side.tensor()
    if behaviour == "calls another" and name == "f":
        return side.op("g")(*plain)
    if behaviour == "calls twice":
        func(*plain)
    return func(*plain)


class Ours:
    """A dispatcher of opdispatch with three operators and two classes of tensors."""

    error = TypeError

    def __init__(self, notes, behaviours):
        self.dispatcher = Dispatcher()
        self.library = Library("modes", "DEF", dispatcher=self.dispatcher)
        for schema in SCHEMAS:
            name = self.library.define(schema)
            self.library.impl(name, self.kernel(notes, name), "CompositeExplicitAutograd")
        self.notes = notes
        self.classes = self.make_classes(notes, behaviours)

    def kernel(self, notes, name):
        return lambda *args: (notes.append(("kernel", name)), self.tensor())[1]

    def make_classes(self, notes, behaviours):
        side = self

        class Base:
            key_bits = DispatchKeySet.of(DispatchKey.Python, DispatchKey.CPU).bits

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                behaviour = behaviours[cls.__name__]
                return handle(notes, cls.__name__, behaviour, func, types, args, side.unwrap, side)

        class Derived(Base):
            pass

        self.types_before = tensor_types._types_with_keys
        arrays.register_tensor_type(Base)
        return {"Base": Base, "Derived": Derived}

    def unwrap(self, value):
        return self.tensor() if type(value).__name__ in self.classes else value

    def make_mode(self, name, behaviour):
        notes, side = self.notes, self

        class Mode(OurMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return handle(notes, name, behaviour, func, types, args, lambda x: x, side)

        return Mode()

    def register_rule(self, name, cls, rule):
        self.library.register_torch_dispatch(name, cls, rule)

    def make_rule(self, who, behaviour):
        notes, side = self.notes, self
        unwrap = self.unwrap if who in self.classes else lambda x: x

        def rule(asked, func, types, args, kwargs):
            return handle(notes, f"rule of {who}", behaviour, func, types, args, unwrap, side)

        return rule

    def op(self, name):
        return self.dispatcher.get_schema(f"modes::{name}")

    def name_of(self, func):
        return func.name.unqualified_name

    def excluded(self):
        """Whether a handler runs below Autograd; of ours, those of classes do not."""
        return local_dispatch_key_set()[1].has(DispatchKey.AutogradOther)

    def tensor(self):
        return Tensor(np.ones(2, np.float32))

    def wrapped(self, name):
        return self.classes[name]()

    def close(self):
        self.library.close()
        tensor_types._types_with_keys = self.types_before


class Theirs(Ours):
    """The same in PyTorch."""

    def __init__(self, notes, behaviours):
        self.namespace = next(NAMESPACES)
        self.library = torch.library.Library(self.namespace, "DEF")
        for schema in SCHEMAS:
            self.library.define(schema)
            name = schema.partition("(")[0]
            self.library.impl(name, self.kernel(notes, name), "CompositeExplicitAutograd")
        self.notes = notes
        self.classes = self.make_classes(notes, behaviours)

    def make_classes(self, notes, behaviours):
        side = self

        class Base(torch.Tensor):
            @staticmethod
            def __new__(cls):
                return torch.Tensor._make_wrapper_subclass(cls, (2,))

            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                behaviour = behaviours[cls.__name__]
                return handle(notes, cls.__name__, behaviour, func, types, args, side.unwrap, side)

        class Derived(Base):
            pass

        return {"Base": Base, "Derived": Derived}

    def make_mode(self, name, behaviour):
        notes, side = self.notes, self

        class Mode(TheirMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return handle(notes, name, behaviour, func, types, args, lambda x: x, side)

        return Mode()

    def register_rule(self, name, cls, rule):
        qualified = f"{self.namespace}::{name}"
        torch.library.register_torch_dispatch(qualified, cls, rule, lib=self.library)

    def op(self, name):
        return getattr(getattr(torch.ops, self.namespace), name).default

    def name_of(self, func):
        return func._schema.name.partition("::")[2]

    def excluded(self):
        return torch._C._dispatch_tls_is_dispatch_key_excluded("AutogradOther")

    def tensor(self):
        return self.blank

    # Made outside of all modes, which would be asked for it.
    blank = torch.ones(2)

    def close(self):
        self.library._destroy()


def run(make_side, program):
    """Return the notes of a call, and how it ended."""
    notes = []
    modes, behaviours, operator, arguments, rules = program
    side = make_side(notes, behaviours)
    try:
        given = [side.tensor() if each == "plain" else side.wrapped(each) for each in arguments]
        entered = [side.make_mode(f"mode {n}", each) for n, each in enumerate(modes)]
        classes = {f"mode {n}": type(mode) for n, mode in enumerate(entered)} | side.classes
        for (who, name), behaviour in rules.items():
            if who in side.classes and behaviour == "declines":
                continue  # PyTorch asks no other mode then: see docs/fidelity.md
            if who in classes:
                side.register_rule(name, classes[who], side.make_rule(who, behaviour))
        try:
            for mode in entered:
                mode.__enter__()
            try:
                side.op(operator)(*([] if operator == "make" else given))
                end = "returned"
            except HandlerError:
                end = "failed"
            except TypeError:
                end = "none"
        finally:
            for mode in reversed(entered):
                mode.__exit__(None, None, None)
    finally:
        side.close()
    is_class = {*side.classes, *(f"rule of {name}" for name in side.classes)}
    return [note[:3] if note[0] in is_class else note for note in notes], end


PROGRAMS = st.tuples(
    st.lists(st.sampled_from(BEHAVIOURS), max_size=3),
    st.fixed_dictionaries({name: st.sampled_from(BEHAVIOURS) for name in ("Base", "Derived")}),
    st.sampled_from(["f", "f", "make"]),
    st.tuples(*[st.sampled_from(["plain", "Base", "Derived"])] * 2),
    st.dictionaries(
        st.tuples(
            st.sampled_from(["mode 0", "mode 1", "mode 2", "Base", "Derived"]),
            st.sampled_from(["f", "f", "g", "make"]),
        ),
        st.sampled_from(BEHAVIOURS),
        max_size=3,
    ),
)


@given(PROGRAMS)
@settings(max_examples=500, deadline=None)
def test_everybody_is_asked_in_the_order_of_pytorch(program):
    assert run(Ours, program) == run(Theirs, program)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda a, x, y: a.matmul(x, y), [(2, 3), (3, 4)]),
        (lambda a, x, y: a.matmul(x, y), [(5, 2, 3), (3, 4)]),
        (lambda a, x, y: a.matmul(x, y), [(5, 2, 3), (5, 3, 4)]),
        (lambda a, x, y: a.matmul(a.matmul(x, y), y), [(3, 3), (3, 3)]),
    ],
)
def test_products_take_what_pytorch_counts(call, shapes):
    from torch.utils.flop_counter import FlopCounterMode as TheirCounter

    with FlopCounterMode(display=False) as ours:
        call(xp, *(Tensor(np.ones(shape)) for shape in shapes))
    theirs = TheirCounter(display=False)
    with theirs:
        call(torch, *(torch.ones(shape) for shape in shapes))
    assert ours.get_total_flops() == theirs.get_total_flops()


def test_a_tensor_that_moves_is_a_call_that_modes_see():
    seen = {OurMode: [], TheirMode: []}
    for base, notes in seen.items():

        class Noting(base):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None, notes=notes):
                notes.append((str(func.name), str(kwargs.get("device"))))
                return func(*args, **kwargs)

        with Noting():
            x = Tensor(np.ones(2)) if base is OurMode else torch.ones(2)
            notes.clear()
            assert x.to("cpu") is x
            x.to("meta")
    assert seen[OurMode] == [("array::astype", "meta")]
    assert [device for _, device in seen[TheirMode]] == ["meta"]
