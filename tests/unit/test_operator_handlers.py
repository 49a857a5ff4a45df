"""Handlers of ``__torch_dispatch__`` as programs for PyTorch write them, of operators of this kind.

Classes make their tensors in ``__new__``, keep tables of what they do by operator, look at schemas
and tags, and leave the rest to ``super().__torch_dispatch__``.
"""

import copy
import importlib
import pickle
import sys

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    DispatchKey,
    DuplicateDefinitionError,
    Library,
    Tag,
    Tensor,
    TorchDispatchMode,
    inference_mode,
    no_grad,
    ops,
)
from opdispatch import array_api as xp

TABLE = {}


def implements(*packets):
    def decorate(function):
        TABLE.update(dict.fromkeys((packet._qualified_op_name for packet in packets), function))
        return function

    return decorate


class Int8(Tensor):
    """Weights as eight bits and a scale, which a few operators calculate with as they are."""

    __slots__ = ("codes", "scale")

    @staticmethod
    def __new__(cls, codes, scale, requires_grad=False):
        made = Tensor._make_wrapper_subclass(
            cls, codes.shape, dtype=np.float64, device=codes.device, requires_grad=requires_grad
        )
        made.codes, made.scale = codes, scale
        return made

    @classmethod
    def of(cls, x, scale):
        return cls(Tensor(np.round(x.array / scale).astype(np.int8)), scale)

    def dequantized(self):
        return Tensor(self.codes.array * self.scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if (function := TABLE.get(func.overloadpacket._qualified_op_name)) is not None:
            return function(func, *args, **(kwargs or {}))
        if func._schema.is_mutable:
            raise NotImplementedError(f"{func.name()} writes to what cannot be written to")
        plain = [each.dequantized() if isinstance(each, cls) else each for each in args]
        return func(*plain, **(kwargs or {}))


@implements(ops.array.negative, ops.array.positive)
def _(func, x):
    return Int8(Tensor(getattr(np, func._opname)(x.codes.array)), x.scale)


@implements(ops.array.matmul)
def _(func, x, y):
    assert func is ops.array.matmul.default
    assert isinstance(y, Int8)
    return Tensor((x.array @ y.codes.array) * y.scale)


class Plain(Tensor):
    """It notes what it is asked, and leaves all of it to its base."""

    asked = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, x):
        return Tensor._make_subclass(cls, x, x.requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, list(args), kwargs)
        flags = getattr(result, "requires_grad", None)
        cls.asked.append((func.name(), [each.requires_grad for each in args[:1]], flags))
        return result


class Statistics(TorchDispatchMode):
    """Counts of the engines: by packet, by namespace, and of operators that write, view or draw."""

    def __init__(self):
        super().__init__()
        self.counts, self.kinds = {}, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = str(func.overloadpacket)
        self.counts[packet] = self.counts.get(packet, 0) + 1
        kinds = {
            "writes": func._schema.is_mutable,
            "view": func.is_view,
            "random": Tag.nondeterministic_seeded in func.tags,
            "on cpu": func.has_kernel_for_dispatch_key("CPU"),
        }
        assert all(a.has_default_value() or a.default_value is None for a in func._schema.arguments)
        self.kinds.append((func.__name__, func.namespace, [k for k, v in kinds.items() if v]))
        return func(*args, **(kwargs or {}))


def test_a_class_that_wraps_calculates_with_what_it_wraps():
    x = Tensor(np.array([[1.0, 2.0]]))
    w = Int8.of(Tensor(np.array([[0.5, 1.0], [1.5, 2.0]])), 0.5)
    assert (w.shape, w.dtype, w.device) == ((2, 2), np.float64, "cpu")
    assert w.key_set.has(DispatchKey.Python)
    assert not w.key_set.has(DispatchKey.Fake)
    assert (x @ w).array.tolist() == [[3.5, 5.0]]
    assert (w + 1).array.tolist() == [[1.5, 2.0], [2.5, 3.0]]
    assert isinstance(-w, Int8)
    assert (-w).codes.array.tolist() == [[-1, -2], [-3, -4]]
    with pytest.raises(NotImplementedError, match=r"array::\S+ writes to what cannot be"):
        w += 1


def test_gradients_go_through_a_class_that_wraps():
    w = Int8.of(Tensor(np.array([0.5, 1.0])), 0.5)
    w.requires_grad_()
    xp.sum(w * w).backward()
    assert w.grad.array.tolist() == [1.0, 2.0]
    with pytest.raises(AutogradError, match="only tensors of floating-point"):
        Tensor._make_wrapper_subclass(Int8, (2,), dtype=np.int8, requires_grad=True)


def test_a_class_with_its_own_new_is_detached_copied_and_pickled():
    w = Int8.of(Tensor(np.array([0.5, 1.0])), 0.5)
    w.requires_grad_()
    for copied in (w.detach(), copy.copy(w), copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        assert (type(copied), copied.scale) == (Int8, 0.5)
        assert copied.codes.array.tolist() == [1, 2]
    assert copy.deepcopy(w).codes is not w.codes
    assert w.detach().codes is w.codes
    plain = Plain(Tensor(np.ones(2), requires_grad=True))
    assert (type(copy.deepcopy(plain)), plain.requires_grad) == (Plain, True)
    assert [type(plain.detach()), plain.detach().requires_grad] == [Plain, False]


def test_call_of_the_base_handler_runs_below_python():
    Plain.asked.clear()
    x = Plain(Tensor(np.array([1.0, 2.0]), requires_grad=True))
    y = xp.sum(-x * 2)
    assert (type(y), y.requires_grad) == (Tensor, True)
    assert Plain.asked == [("array::negative", [True], False)]  # its results are plain tensors
    y.backward()
    assert np.asarray(x.grad).tolist() == [-2.0, -2.0]
    x = Plain(Tensor(np.zeros(2)))
    x += 1
    assert (type(x), x.array.tolist()) == (Plain, [1.0, 1.0])


def test_a_class_that_handles_nothing_wraps_nothing():
    class Bare(Tensor):
        pass

    with pytest.raises(ArgumentError, match="Bare must define __torch_dispatch__"):
        Tensor._make_wrapper_subclass(Bare, (2,))
    assert (-Bare(np.ones(2))).array.tolist() == [-1.0, -1.0]


def test_a_mode_learns_of_operators_what_it_needs():
    with Statistics() as seen:
        x = xp.ones(2)
        x[0] = 3.0
        _ = x[1:] + x[:1]
    assert seen.counts["array.add"] == 1
    assert seen.counts["array.getitem"] == 2
    kinds = {name: kinds for name, _, kinds in seen.kinds}
    assert kinds["add.Tensor"] == ["on cpu"]
    assert "view" in kinds["getitem.default"]
    assert any("writes" in each for each in kinds.values())
    assert {namespace for _, namespace, _ in seen.kinds} == {"array"}


def test_a_mode_whose_handler_is_a_classmethod_is_refused():
    class Wrong(TorchDispatchMode):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with pytest.raises(RuntimeError, match=r"Wrong.__torch_dispatch__ is a classmethod"), Wrong():
        xp.ones(1)
    assert xp.ones(1).array.tolist() == [1.0]


def test_a_view_knows_its_base():
    x = Tensor(np.ones(4), requires_grad=True)
    for made in (x[1:], x[1:][:1], xp.reshape(x, (2, 2)), *xp.unstack(x)):
        assert made._base is x
        assert made._is_view()
    with no_grad():
        assert x[1:]._base is x
    with inference_mode():
        assert x[1:]._base is x
        assert xp.ones(2)[1:]._base is None
    for other in (x, x * 1, x.detach(), copy.copy(x)):
        assert other._base is None
        assert not other._is_view()


def test_reloaded_module_gets_an_error_with_a_hint(tmp_path, monkeypatch):
    (tmp_path / "loaded_twice.py").write_text(
        'from opdispatch import Library\nlib = Library("twice", "DEF")\n'
        'more = Library("twice", "FRAGMENT")\nmore.define("f(Tensor x) -> Tensor")\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("loaded_twice")
    try:
        message = r"twice.*loaded_twice.py:2.*\(close the old library first, or use custom_op"
        with pytest.raises(DuplicateDefinitionError, match=message):
            importlib.reload(module)
        with pytest.raises(DuplicateDefinitionError, match=r"DEF already.*\(a FRAGMENT library"):
            Library("twice", "DEF")
    finally:
        module.lib.close()
        module.more.close()
        del sys.modules["loaded_twice"]
