"""Calls: which kernel they arrive at, what they pass and return, and how they fail."""

import copy

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    Library,
    NoKernelError,
    OperatorNotFoundError,
    ReturnError,
    Tensor,
    capture_dispatch_trace,
    parse_schema,
)
from opdispatch.keys.dispatch_key_set import AFTER_AUTOGRAD_KEYSET
from opdispatch.library.ops import Ops
from tests.unit.plain_kernels import naming, returning, tensor

K = DispatchKey
X = np.ones(2)
pytestmark = pytest.mark.usefixtures("caller")


# -- which kernel ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "served"),
    [
        ([K.CPU], "CPU"),
        ([K.CUDA], "CUDA"),
        ([K.CPU, K.CUDA], "CUDA"),
        ([K.SparseCPU], "SparseCPU"),
        ([K.SparseCPU, K.CPU], "SparseCPU"),
        ([K.AutogradCPU, K.CPU], "AutogradCPU"),
        ([K.AutogradCUDA, K.CUDA], "CUDA"),  # autograd's fallback passes it on
        ([K.Python, K.AutogradCPU, K.CPU], "AutogradCPU"),
        ([K.Tracer, K.Python, K.CPU], "Tracer"),
        ([], "CompositeImplicitAutograd"),
        ([K.XPU], "CompositeImplicitAutograd"),
    ],
)
def test_the_highest_key_of_the_arguments_is_served(define, keys, served):
    kernels = naming("CPU", "CUDA", "SparseCPU", "AutogradCPU", "Tracer", "Python")
    op = define("t::f(Tensor x) -> str", **kernels, **naming("CompositeImplicitAutograd"))
    for _ in range(2):
        assert op(tensor(*keys)) == served


def test_a_call_without_tensors_lands_in_the_slot_of_undefined(define):
    op = define("t::f(Tensor[] xs, int n=0) -> str", **naming("CPU", "Undefined"))
    assert op([]) == "Undefined"
    assert op([X]) == "CPU"


@pytest.mark.parametrize(
    "args",
    [
        lambda t: (t, X, [X], [None]),
        lambda t: (X, t, [X], [None]),
        lambda t: (X, None, [X, t], [None]),
        lambda t: (X, None, (t,), []),
        lambda t: (X, None, [X], [None, t]),
    ],
)
def test_tensors_have_a_say_wherever_they_stand(define, args):
    op = define(
        "t::f(Tensor x, Tensor? y, Tensor[] zs, Tensor?[] ws) -> str", **naming("CPU", "CUDA")
    )
    for _ in range(2):
        assert op(*args(X)) == "CPU"
        assert op(*args(tensor(K.CUDA))) == "CUDA"


def test_tensors_in_other_places_have_none(define):
    schema = "t::f(Tensor x, Any a, Tensor[]? b=None, (Tensor, int)? c=None) -> str"
    op = define(schema, **naming("CPU", "CUDA"))
    t = tensor(K.CUDA)
    assert op(X, t) == op(X, 0, [t]) == op(X, 0, c=(t, 1)) == "CPU"


def test_plain_arrays_have_their_backend_alone_and_tensors_have_autograd(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU", "AutogradCPU"))
    assert op(X) == op(np.float64(1)) == "CPU"
    assert op(Tensor(X)) == "AutogradCPU"


# -- fallthrough -------------------------------------------------------------------------------


def test_a_fallthrough_is_passed_by_on_its_backend_only(define):
    op = define(
        "t::f(Tensor x) -> str",
        **naming("CPU", "CUDA", "AutogradCUDA"),
        AutogradCPU=KernelFunction.fallthrough(),
    )
    for _ in range(2):
        assert op(tensor(K.CPU, K.AutogradCPU)) == "CPU"
        assert op(tensor(K.CUDA, K.AutogradCUDA)) == "AutogradCUDA"
    assert op.dispatch_keys([tensor(K.CPU, K.AutogradCPU)]) == DispatchKeySet.of(K.CPU)


def test_a_fallthrough_may_cover_a_kernel_and_be_undone(dispatcher, define):
    op = define("t::f(Tensor x) -> str", **naming("CPU", "Tracer"))
    x = tensor(K.CPU, K.Tracer)
    assert op(x) == "Tracer"
    with dispatcher.register_impl(op.name, K.Tracer, KernelFunction.fallthrough()):
        assert op(x) == "CPU"
    assert op(x) == "Tracer"


def test_an_operators_kernel_stands_above_a_fallthrough_fallback(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU", "ADInplaceOrView"))
    assert op(X) == "ADInplaceOrView", "it is in the local included set"


def test_falling_through_everything_is_falling_into_undefined(define):
    op = define("t::f(Tensor x) -> str", CPU=KernelFunction.fallthrough(), **naming("Undefined"))
    assert op(X) == "Undefined"


# -- redispatch --------------------------------------------------------------------------------


def test_a_kernel_redispatches_to_the_ones_below_it(define):
    def autograd(keys, x):
        return ["autograd", *op.redispatch(keys & AFTER_AUTOGRAD_KEYSET, x)]

    kernel = KernelFunction.from_unboxed(autograd, with_keyset=True)
    op = define("t::f(Tensor x) -> str[]", AutogradCPU=kernel, CPU=lambda x: ["cpu"])
    for _ in range(2):
        assert op(Tensor(X)) == ["autograd", "cpu"]
        assert op(X) == ["cpu"]


def test_a_redispatch_goes_by_the_given_keys_whatever_the_arguments_have(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU", "CUDA"))
    for _ in range(2):
        assert op.redispatch(DispatchKeySet.of(K.CUDA), X) == "CUDA"
        assert op.redispatch(DispatchKeySet.of(K.CPU), tensor(K.CUDA)) == "CPU"


def test_a_redispatch_masks_nothing_so_it_cannot_fall_through(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU"), Tracer=KernelFunction.fallthrough())
    keys = DispatchKeySet.of(K.CPU, K.Tracer)
    text = "t::f falls through at Tracer, which a redispatch cannot do; kernels serve CPU"
    for call in (lambda: op.redispatch(keys, X), lambda: op.redispatch_boxed(keys, [X])):
        with pytest.raises(NoKernelError) as caught:
            call()
        assert str(caught.value) == text


def test_a_redispatch_binds_its_arguments_as_a_call_does(define):
    op = define("t::f(Tensor x, int n=2, *, int k=3) -> int", CPU=lambda x, n, *, k: n * k)
    cpu = DispatchKeySet.of(K.CPU)
    for _ in range(2):
        assert op.redispatch(cpu, X) == 6
        assert op.redispatch(cpu, x=X, n=4, k=5) == 20
    for args, message in (
        ([], "t::f is missing its argument 'x'"),
        ([1], "t::f got a wrong value for argument 'x'"),
        ([X, "a"], "t::f got a wrong value for argument 'n'"),
    ):
        with pytest.raises(ArgumentError, match=message):
            op.redispatch(cpu, *args)


def test_a_kernel_may_pass_on_what_it_was_given_and_returns_are_checked(define):
    received, results = [], [X, Tensor(X), (X,), "no tensor"]

    def cpu(x, n, *, k):
        received.append((n, k))
        return results.pop(0)

    op = define("t::f(Tensor x, int[1] n, *, int? k=None) -> Tensor", CPU=cpu)
    keys, n = DispatchKeySet.of(K.CPU), [1, 2]
    for expected in results[:2]:  # the first call learns the way
        assert op.redispatch_converted(keys, X, n, k=3) is expected
    assert received == [([1, 2], 3)] * 2
    assert all(given is not n for given, _ in received)  # a kernel may change its lists
    for _ in results[:2]:
        with pytest.raises(ReturnError, match=r"t::f returned what its schema does not promise"):
            op.redispatch_converted(keys, X, n, k=3)
    with capture_dispatch_trace() as lines, pytest.raises(IndexError):
        op.redispatch_converted(keys, X, n, k=3)
    assert [(line.kind, line.key) for line in lines] == [("redispatch", "CPU")]


# -- boxed calls -------------------------------------------------------------------------------


def test_a_boxed_call_replaces_the_arguments_by_the_returns(define):
    op = define("t::f(Tensor x, int n=2) -> (int, Tensor)", CPU=lambda x, n: (n, x))
    stack = op.bind([X], {})
    op.call_boxed(stack)
    assert stack == [2, X]


def test_a_boxed_call_of_an_operator_without_returns_leaves_an_empty_stack(define):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None)
    stack = [X]
    op.call_boxed(stack)
    assert stack == []
    assert op(X) is None


def test_a_slot_can_be_called_by_its_key(define):
    op = define("t::f(Tensor x) -> str", **naming("CPU", "CUDA", "CompositeExplicitAutograd"))
    for key, served in ((K.CUDA, "CUDA"), (K.XPU, "CompositeExplicitAutograd")):
        stack = [X]
        op.call_boxed_for_dispatch_key(key, stack)
        assert stack == [served]
    with pytest.raises(NoKernelError, match="has no kernel for arguments from the Fake backend"):
        op.call_boxed_for_dispatch_key(K.Fake, [X])


def test_the_steps_of_a_call_can_be_taken_one_by_one(define):
    op = define("t::f(Tensor x, int n=2) -> int", CPU=lambda x, n: np.int64(n))
    stack = op.bind([], {"x": X})
    keys = op.dispatch_keys(stack)
    assert keys == DispatchKeySet.of(K.CPU)
    kernel = op.lookup(keys)
    assert (kernel.key, kernel.reason) == (K.CPU, "kernel")
    kernel.kernel.call_boxed(op, keys, stack)
    returns = op.check_returns(stack)
    assert (type(returns[0]), returns) == (int, [2])


# -- returns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "value", "message"),
    [
        ("Tensor", 1, "expected Tensor "),
        ("Tensor", None, "expected Tensor "),
        ("()", X, "expected None, not numpy.ndarray"),
        ("(Tensor, int)", X, "expected a tuple of 2, not numpy.ndarray"),
        ("(Tensor, int)", (X, "a"), "return 1: expected int, got str 'a'"),
        ("int", 1.5, "expected int, got float 1.5"),
    ],
)
def test_a_kernel_that_breaks_its_promise_is_found_out(define, returns, value, message):
    op = define(f"t::f(Tensor x) -> {returns}", CPU=lambda x: value)
    cpu = DispatchKeySet.of(K.CPU)
    for call in (
        lambda: op(X),
        lambda: op(X),
        lambda: op.redispatch(cpu, X),
        lambda: op.redispatch(cpu, X),
        lambda: op.call_boxed([X]),
    ):
        with pytest.raises(ReturnError) as caught:
            call()
        assert str(caught.value).startswith("the kernel of t::f returned what its schema does not")
        assert message in str(caught.value)


def test_a_result_is_converted_to_the_types_of_the_schema(define):
    op = define("t::f(Tensor x) -> (int, float[])", CPU=lambda x: (np.int8(1), (1, 2)))
    for _ in range(2):
        number, numbers = op(X)
        assert (type(number), numbers) == (int, [1.0, 2.0])


def test_an_error_of_a_kernel_passes_through_and_the_kernel_is_called_once(define):
    calls = []

    def kernel(x):
        calls.append(x)
        raise KeyError("mine")

    op = define("t::f(Tensor x) -> Tensor", CPU=kernel)
    for n in (1, 2):
        with pytest.raises(KeyError, match="mine") as caught:
            op(X)
        assert len(calls) == n
        assert caught.value.__context__ is None


# -- looking inside ------------------------------------------------------------------------------


@pytest.fixture
def described(dispatcher):
    """An operator whose registrations say where they were made."""
    schema = parse_schema("t::f(Tensor x) -> Tensor")
    dispatcher.register_def(schema, site="lib.py:1", tags=("pointwise",))
    for key, kernel, site in (
        (K.CPU, returning(1), "lib.py:2"),
        (K.CPU, returning(2), "lib.py:3"),
        (K.Tracer, KernelFunction.fallthrough(), "lib.py:4"),
        (K.Autograd, returning(3), "lib.py:5"),
        (K.Dense, returning(4), ""),
    ):
        dispatcher.register_impl(schema.name, key, kernel, site=site)
    return dispatcher.get_schema(schema.name)


def test_an_operator_knows_its_definition(described):
    assert str(described.name) == "t::f"
    assert str(described.schema) == "t::f(Tensor x) -> Tensor"
    assert (described.defined_at, described.tags) == ("lib.py:1", ["pointwise"])
    assert described.definition.schema is described.schema
    assert repr(described) == "<OperatorHandle t::f>"


def test_an_operator_lists_its_kernels_newest_first(described):
    listed = [(str(k.key), k.registration.site, k.active) for k in described.kernels()]
    assert listed == [
        ("Dense", "", True),
        ("Tracer", "lib.py:4", True),
        ("CPU", "lib.py:3", True),
        ("CPU", "lib.py:2", False),
        ("Autograd", "lib.py:5", True),
    ]
    assert described.has_kernel_for_dispatch_key(K.Autograd)
    assert not described.has_kernel_for_dispatch_key(K.AutogradCPU)


def test_the_table_has_a_row_for_each_key_with_a_kernel(described):
    rows = {str(row.key): row for row in described.table_rows()}
    cpu, tracer, select = rows["CPU"], rows["Tracer"], rows["BackendSelect"]
    assert (cpu.registered_at, cpu.reason, cpu.fallthrough) == ("lib.py:3", "kernel", False)
    assert (tracer.registered_at, tracer.reason, tracer.fallthrough) == ("lib.py:4", "kernel", True)
    assert (select.reason, select.fallthrough) == ("backend fallback", True)
    assert rows["AutogradHIP"].reason == "autograd kernel"
    assert "CUDA" not in rows


def test_an_ambiguous_slot_has_a_row_without_a_kernel(define):
    op = define("t::f(Tensor x) -> str", **naming("CompositeImplicitAutograd", "SparseCPU"))
    [row] = [row for row in op.table_rows() if row.key is K.AutogradOther]
    assert (row.registration, row.reason) == (None, "ambiguous autogradother")
    assert "AutogradOther: ambiguous_autogradother [ambiguous autogradother]\n" in op.dump_table()


def test_the_table_is_dumped_in_the_lines_of_pytorch(described):
    lines = described.dump_table().splitlines()
    assert lines[0] == "CPU: registered at lib.py:3 [kernel]"
    assert "Tracer: fallthrough registered at lib.py:4 [kernel]" in lines
    assert "AutogradCUDA: registered at lib.py:5 [autograd kernel]" in lines


def test_the_state_is_dumped_with_every_kernel(described):
    assert described.dump_state().splitlines() == [
        "name: t::f",
        "schema: t::f(Tensor x) -> Tensor",
        "debug: registered at lib.py:1",
        "alias analysis kind: FROM_SCHEMA",
        "Dense: registered from Python :: (none) [ boxed ]",
        "Tracer: registered at lib.py:4 :: (none) [ fallthrough boxed ]",
        "CPU: registered at lib.py:3 :: (none) [ boxed ]",
        "CPU (inactive): registered at lib.py:2 :: (none) [ boxed ]",
        "Autograd[alias]: registered at lib.py:5 :: (none) [ boxed ]",
    ]


def test_the_state_without_a_definition_has_no_schema(dispatcher):
    name = parse_schema("t::f() -> ()").name
    dispatcher.register_impl(name, K.CPU, returning(1))
    lines = dispatcher.find_op(name).dump_state().splitlines()
    assert lines[:2] == ["name: t::f", "schema: (none)"]


def test_dumps_show_the_debug_text_that_a_registration_has(dispatcher):
    schema = parse_schema("t::f(Tensor x) -> Tensor")
    dispatcher.register_def(schema, site="lib.py:1", debug="defined there")
    dispatcher.register_impl(schema.name, K.CPU, returning(1), site="lib.py:2", debug="fn_cpu")
    dispatcher.register_fallback(K.CUDA, returning(2), site="lib.py:3", debug="fn_cuda")
    op = dispatcher.get_schema("t::f")
    assert op.dump_table().splitlines()[:2] == [
        "CPU: fn_cpu [kernel]",
        "CUDA: fn_cuda [backend fallback]",
    ]
    assert "debug: defined there\n" in op.dump_state()
    assert "CPU: fn_cpu :: (none) [ boxed ]\n" in op.dump_state()
    assert op.defined_at == "lib.py:1"


def test_an_operator_has_pytorchs_names_for_what_it_is():
    dispatcher = Dispatcher()
    with Library("named", "DEF", dispatcher=dispatcher) as lib:
        lib.define("f(Tensor(a) x, int[] n=[1]) -> Tensor(a)")
        lib.define("f.two(Tensor(a!) x) -> ()")
        lib.impl("f", lambda x, n: x, "CompositeImplicitAutograd")
        f, two = (dispatcher.get_schema(name) for name in ("named::f", "named::f.two"))
        with pytest.raises(OperatorNotFoundError, match="a dispatcher without packets"):
            _ = f.overloadpacket
        ops = Ops(dispatcher)
        assert f.overloadpacket is two.overloadpacket is ops.named.f
        assert (f.name(), f.namespace, f.__name__, str(f)) == (
            *("named::f", "named", "f.default", "named.f.default"),
        )
        assert (two.name(), two.__name__, str(two)) == ("named::f.two", "f.two", "named.f.two")
        assert f._schema is f.schema
        assert (f.is_view, two.is_view) == (True, False)
        assert copy.deepcopy(f) is copy.copy(f) is f.op is f
        assert f.has_kernel_for_dispatch_key("CompositeImplicitAutograd")
        assert not f.has_kernel_for_dispatch_key("CPU")
        assert f.has_kernel_for_any_dispatch_key(DispatchKeySet.of("CPU")) is False
        x = Tensor(np.ones(2))
        assert f.decompose(x) is x
        assert two.decompose(x) is NotImplemented
        argument = f._schema.arguments[1]
        assert (argument.default_value, argument.has_default_value()) == ([1], True)
        assert f._schema.arguments[0].default_value is None
