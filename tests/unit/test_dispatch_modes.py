"""Modes: Python code that sees the calls of a block, and two that ship."""

import asyncio
import threading

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    FlopCounterMode,
    IncludeDispatchKeyGuard,
    LoggingMode,
    MetaArray,
    ReturnError,
    Tensor,
    TorchDispatchMode,
    arrays,
    autocast,
    is_grad_enabled,
    local_dispatch_key_set,
    ops,
    register_flop_formula,
)
from opdispatch import array_api as xp
from opdispatch.arrays import tensor_types
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.local_state.torch_dispatch_mode import dispatch_modes, keys_of_modes
from opdispatch_wire.calls import call_request
from tests.waits import LONGEST_WAIT, join

K = DispatchKey
X = np.ones((2, 3), np.float32)


class Noting(TorchDispatchMode):
    """Notes the names of the operators that it is asked for, and calls them."""

    def __init__(self, notes, name="", **named):
        super().__init__(**named)
        self.notes, self.name = notes, name

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.notes.append(self.name + str(func.name))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def notes():
    return []


@pytest.fixture
def double(define):
    return define("t::double(Tensor x, *, float by=2.0) -> Tensor", CPU=lambda x, *, by: x * by)


# -- the stack -----------------------------------------------------------------------------------


def test_a_mode_sees_the_calls_of_its_block(double, notes, caller):
    double(X)
    with Noting(notes) as mode:
        assert isinstance(mode, Noting)
        assert double(X).tolist() == (X * 2).tolist()
    double(X)
    assert notes == ["t::double"]


def test_mode_gets_operator_and_arguments_without_defaults(double):
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((func, types, args, kwargs))
            return args[0]

    with Mode():
        double(X, by=2.0)
        double(X, by=3)
    assert [func.name for func, *_ in seen] == [double.name] * 2
    assert [(types, kwargs) for _, types, _, kwargs in seen] == [((), {}), ((), {"by": 3.0})]
    assert all(args[0] is X for _, _, args, _ in seen)


def test_the_innermost_is_asked_first_and_calls_the_next(double, notes, caller):
    with Noting(notes, "outer "), Noting(notes, "inner "):
        double(X)
    assert notes == ["inner t::double", "outer t::double"]


def test_a_mode_does_not_see_its_own_calls_unless_it_is_entered_in_its_handler(double, define):
    seen = []
    triple = define("t::triple(Tensor x) -> Tensor", CPU=lambda x: x * 3)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func.name))
            if func.name == double.name:
                triple(*args)
                with self:
                    return triple(*args)
            return func(*args)

    with Mode():
        double(X)
    assert seen == ["t::double", "t::triple"]


def test_mode_does_not_see_calls_of_kernels(define, double, notes):
    quadruple = define("t::quadruple(Tensor x) -> Tensor", CPU=lambda x: double(double(x)))
    with Noting(notes):
        quadruple(X)
    assert notes == ["t::quadruple"]


def test_mode_sees_the_calls_of_composite_kernels(define, double, notes):
    """They run at Autograd, before Python is asked; plain arrays do not visit that."""
    op = define(
        "t::quadruple(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: double(double(x))
    )
    with Noting(notes):
        op(Tensor(X))
        op(X)
    assert notes == ["t::double", "t::double", "t::quadruple"]


def test_calls_without_tensors_are_seen(define, notes, caller):
    make = define("t::make(int n) -> Tensor", CompositeExplicitAutograd=lambda n: np.ones(n))
    with Noting(notes):
        assert make(3).shape == (3,)
        assert xp.zeros((2, 2)).shape == (2, 2)
    assert notes == ["t::make", "array::zeros"]


def test_the_stack_is_restored_after_exceptions(define, notes):
    def fail(x):
        raise ZeroDivisionError

    op = define("t::fail(Tensor x) -> Tensor", CPU=fail)
    outer, inner = Noting(notes, "outer "), Noting(notes, "inner ")
    with outer:
        with pytest.raises(ZeroDivisionError), inner:
            op(X)
        assert dispatch_modes() == (outer,)
        with pytest.raises(ZeroDivisionError):
            op(X)
        assert dispatch_modes() == (outer,)
    assert dispatch_modes() == ()
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_leaving_restores_the_exact_words(notes):
    guard = IncludeDispatchKeyGuard(K.Python), ExcludeDispatchKeyGuard(K.AutogradCPU)
    with guard[0], guard[1]:
        before = local_dispatch_key_set()
        with Noting(notes):
            assert local_dispatch_key_set()[0] == before[0].add(K.PythonTLSSnapshot)
        assert local_dispatch_key_set() == before


def test_kernel_below_python_keeps_the_callers_snapshot_key(define):
    seen = []
    op = define("t::look(Tensor x) -> ()", CPU=lambda x: seen.append(local_dispatch_key_set()[0]))
    with IncludeDispatchKeyGuard(K.PythonTLSSnapshot):
        op.redispatch(DispatchKeySet.of(K.Python, K.CPU), Tensor(X))
    assert K.PythonTLSSnapshot in seen[0]


def test_a_mode_may_be_entered_twice(double, notes):
    mode = Noting(notes)
    with mode, mode:
        double(X)
    assert notes == ["t::double"] * 2


def test_a_thread_begins_without_modes_and_a_task_with_those_of_its_creator(double, notes):
    def call_in_thread():
        double(X)

    async def call_in_task():
        double(X)
        with Noting(notes, "inner "):
            await asyncio.sleep(0)
            double(X)

    async def two_tasks():
        await asyncio.gather(call_in_task(), call_in_task())
        assert len(dispatch_modes()) == 1

    with Noting(notes):
        thread = threading.Thread(target=call_in_thread)
        thread.start()
        join(thread)
        assert notes == []
        asyncio.run(two_tasks())
    assert sorted(notes) == ["inner t::double"] * 2 + ["t::double"] * 4


def test_one_mode_in_several_threads(double, notes):
    mode, barrier = Noting(notes), threading.Barrier(2)

    def call():
        with mode:
            barrier.wait(LONGEST_WAIT)
            double(X)
            barrier.wait(LONGEST_WAIT)
        assert dispatch_modes() == ()

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert notes == ["t::double"] * 2


def test_a_mode_of_another_key_is_refused():
    with pytest.raises(ArgumentError, match="must be Python or PreDispatch, not Tracer"):
        TorchDispatchMode(K.Tracer)


def test_a_class_without_a_handler_says_so(double):
    class Silent(TorchDispatchMode):
        pass

    with Silent(), pytest.raises(NotImplementedError, match="Silent does not define"):
        double(X)


# -- beside the other keys -----------------------------------------------------------------------


def test_handlers_are_below_autograd(notes):
    inside = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            inside.append((func(*args).requires_grad, is_grad_enabled()))
            return func(*args)

    x = Tensor(X, requires_grad=True)
    with Mode():
        y = xp.multiply(x, 3.0)
    assert inside == [(False, True)]
    assert y.requires_grad
    xp.sum(y).backward()
    assert x.grad.array.tolist() == (X * 3).tolist()


def test_handlers_are_below_autocast_and_casts_are_calls(notes):
    x = Tensor(np.ones((2, 2), np.float32))
    with autocast("cpu"), Noting(notes):
        assert xp.matmul(x, x).dtype.name == "bfloat16"
    assert notes == ["array::astype", "array::astype", "array::matmul"]


def test_a_result_is_checked(double):
    class Wrong(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return "no tensor"

    with Wrong(), pytest.raises(ReturnError, match="t::double"):
        double(X)


def test_pre_dispatch_modes_see_calls_before_any_other_key(define, double, notes, caller):
    """As they were made: composite kernels have not called others yet."""
    op = define(
        "t::quadruple(Tensor x) -> Tensor", CompositeImplicitAutograd=lambda x: double(double(x))
    )
    x = Tensor(X, requires_grad=True)
    with Noting(notes, "pre ", _dispatch_key=K.PreDispatch):
        with Noting(notes):
            op(x)
        assert xp.multiply(x, 2.0).requires_grad  # calls from there visit Autograd
    assert notes == ["pre t::quadruple", "t::double", "t::double", "pre array::multiply.Scalar"]
    assert LOCAL_STATE.get() is DEFAULT_STATE


def test_a_mode_that_does_not_handle_a_call(double):
    class No(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return NotImplemented

    for mode in (No(), No(K.PreDispatch)):
        with mode, pytest.raises(ArgumentError, match=r"t::double handles it: the mode .*No$"):
            double(X)


@pytest.fixture
def boxed(monkeypatch):
    """A class of tensors that handles operators itself."""
    monkeypatch.setattr(tensor_types, "_types_with_keys", tensor_types._types_with_keys)

    class Boxed:
        key_bits = DispatchKeySet.of(K.Python).bits
        asked = 0

        def __init__(self, array):
            self.array = array

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            cls.asked += 1
            return cls(func(*(each.array if type(each) is cls else each for each in args)))

    arrays.register_tensor_type(Boxed)
    return Boxed


def test_classes_of_tensors_come_after_the_modes(double, boxed):
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append((types, boxed.asked))
            return func(*args) if types == (boxed,) else NotImplemented

    with Mode():
        assert type(double(boxed(X))) is boxed
    assert (seen, boxed.asked) == ([((boxed,), 0)], 1)


def test_classes_are_asked_if_the_mode_leaves_it_to_them_and_the_mode_is_on_for_their_calls(
    double, boxed
):
    """As in PyTorch; modes further out are not asked."""
    seen = []

    class No(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(types)
            return NotImplemented if types else func(*args)

    with No():
        assert type(double(boxed(X))) is boxed
    assert seen == [(boxed,), ()]


def test_modes_do_not_travel(notes):
    with Noting(notes), Noting(notes, _dispatch_key=K.PreDispatch):
        assert keys_of_modes() == DispatchKeySet.of(K.Python, K.PythonTLSSnapshot, K.PreDispatch)
        assert not call_request("t::double", [X], {}).HasField("local_keys")
        with ExcludeDispatchKeyGuard(K.AutogradCPU):
            request = call_request("t::double", [X], {})
    assert not DispatchKeySet(request.local_keys.included).has(K.Python)
    assert DispatchKeySet(request.local_keys.excluded).has(K.AutogradCPU)


# -- LoggingMode ---------------------------------------------------------------------------------


def test_calls_are_written_with_shapes_and_dtypes():
    lines = []
    with LoggingMode(lines.append):
        xp.concat([Tensor(X), Tensor(X)], axis=1)
        ops.array.linalg_slogdet(np.eye(2))
        xp.zeros(2, dtype=xp.float32)
    assert lines == [
        "array::concat([float32[2, 3], float32[2, 3]], axis=1) -> float32[2, 6]",
        "array::linalg_slogdet(float64[2, 2]) -> (float64[], float64[])",
        "array::zeros([2], dtype=float32) -> float32[2]",
    ]


def test_logging_mode_indents_calls_of_kernels(define, double, capsys):
    def both(x):
        double(x)
        return double(x, by=3.0)

    op = define("t::both(Tensor x) -> Tensor", CPU=both)
    with LoggingMode():
        op(X)
    assert capsys.readouterr().err.splitlines() == [
        "t::both(float32[2, 3]) -> float32[2, 3]",
        "  t::double(float32[2, 3]) -> float32[2, 3]",
        "  t::double(float32[2, 3], by=3.0) -> float32[2, 3]",
    ]


def test_errors_are_written_too(define):
    lines = []

    def fail(x):
        raise ZeroDivisionError

    op = define("t::fail(Tensor x) -> ()", CPU=fail)
    with LoggingMode(lines.append), pytest.raises(ZeroDivisionError):
        op(X)
    assert lines == ["t::fail(float32[2, 3]) raises ZeroDivisionError"]


# -- FlopCounterMode -----------------------------------------------------------------------------


def flops_of(call, *shapes):
    with FlopCounterMode(display=False) as counter:
        call(*(Tensor(MetaArray(shape, np.float64)) for shape in shapes))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("call", "shapes", "flops"),
    [
        (xp.matmul, [(2, 3), (3, 4)], 48),
        (xp.matmul, [(5, 2, 3), (3, 4)], 240),
        (xp.matmul, [(3,), (3,)], 6),
        (xp.matmul, [(0, 3), (3, 4)], 0),
        (lambda x, y: xp.tensordot(x, y, axes=1), [(2, 3), (3, 4)], 48),
        (lambda x, y: xp.tensordot(x, y, axes=2), [(5, 2, 3), (2, 3, 4)], 240),
        (lambda x, y: xp.tensordot(x, y, axes=0), [(2,), (3,)], 12),
        (lambda x, y: xp.tensordot(x, y, axes=1), [(0, 3), (3, 4)], 0),
        (xp.vecdot, [(4, 3), (4, 3)], 24),
        (xp.linalg.outer, [(2,), (3,)], 6),
        (xp.linalg.cross, [(4, 3), (4, 3)], 36),
        (xp.add, [(2, 1), (3,)], 6),
        (lambda x: xp.exp(x) * 2.0, [(2, 3)], 12),
        (xp.sum, [(2, 3)], 6),
        (xp.var, [(2, 3)], 24),
        (xp.linalg.vector_norm, [(6,)], 12),
        (xp.linalg.trace, [(3, 3)], 3),
        (xp.linalg.cholesky, [(2, 6, 6)], 144),
        (xp.linalg.det, [(3, 3)], 18),
        (xp.linalg.inv, [(2, 3, 3)], 108),
        (xp.linalg.solve, [(3, 3), (3, 2)], 18 + 36),
        (xp.linalg.solve, [(3, 3), (3,)], 18 + 18),
        (lambda x: xp.linalg.matrix_power(x, 5), [(2, 2)], 3 * 16),
        (lambda x: xp.linalg.matrix_power(x, -1), [(2, 2)], 16),
        (lambda x: xp.linalg.matrix_power(x, 0), [(2, 2)], 0),
        (xp.linalg.qr, [(6, 3)], 2 * (2 * 6 * 9 - 18)),
        (xp.linalg.eigh, [(2, 2)], 72),
        (xp.linalg.svdvals, [(6, 3)], 4 * 6 * 9 - 36),
        (lambda x: xp.linalg.svd(x, full_matrices=False), [(3, 6)], 14 * 54 + 8 * 27),
        (xp.fft.fft, [(3, 8)], 5 * 3 * 8 * 3),
        (xp.fft.fftn, [(4, 8)], 5 * 32 * 5),
        (xp.fft.rfftn, [(4, 8)], 80 * 5),
        (lambda x: xp.reshape(x, (6,)), [(2, 3)], 0),
    ],
)
def test_flops_follow_from_shapes(call, shapes, flops):
    assert flops_of(call, *shapes) == flops


def test_real_transforms_take_half_as_much():
    x = Tensor(np.ones((3, 8)))
    for call, length in ((xp.fft.rfft, 8), (lambda x: xp.fft.rfft(x, n=4), 4)):
        with FlopCounterMode(display=False) as counter:
            call(x)
        assert counter.get_total_flops() == 2.5 * 3 * length * np.log2(length)
    with FlopCounterMode(display=False) as counter:
        xp.fft.irfft(xp.fft.rfft(x))
    assert counter.get_flop_counts() == {"array::fft_rfft": 180, "array::fft_irfft": 180}


def test_there_is_a_table(capsys):
    x = Tensor(np.ones((10, 10)))
    with FlopCounterMode() as counter:
        xp.add(xp.matmul(x, x), 1.0)
        xp.matmul(x, x)
    assert capsys.readouterr().out == counter.get_table() + "\n"
    assert counter.get_flop_counts() == {"array::matmul": 4000, "array::add": 100}
    assert counter.get_table().splitlines() == [
        "operator       calls  flops     %",
        "array::matmul      2  4,000  97.6",
        "array::add         1    100   2.4",
        "total              3  4,100",
    ]
    with counter:
        pass
    assert counter.get_total_flops() == 0


def test_operators_without_a_formula_take_what_their_kernels_call(define):
    op = define(
        "t::two(Tensor x) -> Tensor", CPU=lambda x: ops.array.matmul(ops.array.matmul(x, x), x)
    )
    with FlopCounterMode(display=False) as counter:
        op(np.ones((2, 2)))
    assert counter.get_flop_counts() == {"array::matmul": 32}


def test_formulas_of_ones_own(define):
    op = define("t::f(Tensor[] xs, *, int n) -> Tensor", CPU=lambda xs, *, n: xs[0])

    @register_flop_formula(["t::f", "t::g"])
    def formula(xs, *, n, out_shape):
        return n * len(xs) * out_shape[0]

    with FlopCounterMode(display=False) as counter:
        op([X, X], n=5)
    assert counter.get_total_flops() == 20
    with FlopCounterMode(False, {"t::f": lambda *_, **__: 1}) as counter:
        op([X, X], n=5)
    assert counter.get_total_flops() == 1
