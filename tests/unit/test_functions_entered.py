"""How many Python functions a call enters, for each kind of schema and way to call.

A kind that falls off the compiled way enters a dozen more, and no result shows it.
"""

import sys

import numpy as np
import pytest

from opdispatch import Dispatcher, Library, Tensor
from opdispatch import array_api as xp
from opdispatch.boxing import read_only_arguments
from opdispatch.dispatch import compiled_call
from opdispatch.library.ops import Ops
from tests.schema_kinds import KINDS

X = np.ones(2, np.float32)
PLACES = np.array([0, 1])
MAKERS = {
    "arrays": lambda: X,
    "tensors": lambda: Tensor(X),
    "recorded": lambda: Tensor(X, requires_grad=True),
}


@pytest.fixture(scope="module")
def operators():
    """The operators of all kinds; those with a derivative in another namespace, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_call, "COMPILE", True)
        patch.setattr(read_only_arguments, "STRICT", False)  # which takes a step more
        dispatcher = Dispatcher()
        with (
            Library("kinds", "DEF", dispatcher=dispatcher) as plain,
            Library("recorded", "DEF", dispatcher=dispatcher) as recorded,
        ):
            for name, kind in KINDS.items():
                plain.define(f"{name}{kind.schema}")
                plain.impl(name, kind.kernel, "CPU")
                if kind.is_recorded:
                    recorded.define(f"{name}{kind.schema}")
                    recorded.impl(name, kind.kernel, "CPU")
                    recorded.register_autograd(name, kind.backward)
            yield Ops(dispatcher)


def entered(call, args, named):
    """Return the functions that one call enters, after two that may learn."""
    names = []

    def note(frame, event, _):
        if event == "call":
            names.append(frame.f_code.co_qualname)

    for _ in range(3):
        names.clear()
        outer = sys.getprofile()
        sys.setprofile(note)
        try:
            call(*args, **named)
        finally:
            sys.setprofile(outer)
    return names


@pytest.mark.parametrize("way", ["handle", "packet", "keywords"])
@pytest.mark.parametrize("given", ["arrays", "tensors"])
@pytest.mark.parametrize("name", KINDS)
def test_a_call_enters_its_entry_point_and_its_kernel(operators, name, given, way):
    kind = KINDS[name]
    packet = getattr(operators.kinds, name)
    args, named = kind.arguments(MAKERS[given], "float32", by_name=way == "keywords")
    found = entered(packet if way == "packet" else packet.default, args, named)
    assert len(found) == 2
    assert found[0].rpartition(".")[2] == "__call__"
    assert found[-1].endswith("<lambda>")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.is_recorded])
def test_a_recorded_call_enters_few_functions(operators, name):
    kind = KINDS[name]
    args, named = kind.arguments(MAKERS["recorded"], "float32", by_name=False)
    found = entered(getattr(operators.recorded, name).default, args, named)
    assert len(found) <= 30, found


def test_a_registration_enters_few_functions():
    dispatcher = Dispatcher()
    with Library("filled", "DEF", dispatcher=dispatcher) as library:
        numbers = iter(range(3))

        def register():
            name = f"op{next(numbers)}"
            library.define(f"{name}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor")
            library.impl(name, lambda x, y, *, alpha: x, "CPU")

        found = entered(register, (), {})
    assert len(found) <= 103, found


VIEWS_AND_REDUCTIONS = {
    "x[1:]": (lambda x: x[1:], 4),
    "x[0]": (lambda x: x[0], 4),
    "x[None, :1]": (lambda x: x[None, :1], 4),
    "x[places]": (lambda x: x[PLACES], 5),
    "reshape": (lambda x: xp.reshape(x, (2, 1)), 4),
    "permute_dims": (lambda x: xp.permute_dims(x, (0,)), 4),
    "broadcast_to": (lambda x: xp.broadcast_to(x, (3, 2)), 4),
    "unstack": (lambda x: xp.unstack(x), 5),
    "sum": (lambda x: xp.sum(x), 3),
    "max": (lambda x: xp.max(x), 3),
    "concat": (lambda x: xp.concat([x, x]), 3),
    "stack": (lambda x: xp.stack([x, x]), 3),
}


@pytest.mark.parametrize("name", VIEWS_AND_REDUCTIONS)
def test_views_and_reductions_of_tensors_enter_few_functions(name):
    call, most = VIEWS_AND_REDUCTIONS[name]
    found = entered(call, (Tensor(X),), {})
    assert len(found) <= most, found


@pytest.mark.parametrize("name", ["x[1:]", "reshape", "concat", "stack", "unstack", "sum"])
def test_views_and_lists_that_are_recorded_enter_few_functions(name):
    call, _ = VIEWS_AND_REDUCTIONS[name]
    found = entered(call, (Tensor(X, requires_grad=True),), {})
    assert len(found) <= 8, found
