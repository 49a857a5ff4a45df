"""The generated entry points and their readable twin: the same results, and the same errors."""

import gc
import inspect
import linecache
import os
import subprocess
import sys
import traceback
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    Library,
    NoKernelError,
    OpdispatchError,
    OperatorHandle,
    ReturnError,
    Tensor,
    parse_schema,
)
from opdispatch.dispatch import compiled_call
from opdispatch.dispatch.compiled_call import MOST_ARGUMENTS, handle_class_for
from opdispatch.library.ops import Ops

K = DispatchKey
X, Y = np.ones(2), Tensor(np.zeros(3))


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """The generated code, whatever the environment says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_call, "COMPILE", True)
        yield


# -- random schemas, arguments and results ------------------------------------------------------

DEFAULTS = {
    "Tensor": [],
    "Tensor?": ["None"],
    "Tensor[]": [],
    "Tensor?[]": [],
    "int": ["0", "-1"],
    "int?": ["None", "3"],
    "int[]": ["[]", "[1, 2]"],
    "int[2]": ["1", "[1, 2]"],
    "SymInt": ["4"],
    "float": ["0.5", "1"],
    "bool": ["True"],
    "str": ['"a"'],
    "Scalar": ["1", "1.5"],
    "Any": [],
    "t": [],
    "ScalarType": ["6"],
    "Device?": ["None"],
}
NAMES = ["x", "y", "n", "self", "type", "lambda", "args", "kwargs", "_a0", "_p", "_op", "_M", "int"]
RETURNS = {
    "()": [None, X, ()],
    "Tensor": [X, Y, None, 1, [X]],
    "int": [1, np.int8(1), 1.5, None],
    "(Tensor, int)": [(X, 1), [Y, 2], (X, "a"), X, None, (X, 1, 2)],
    "Tensor[]": [[X, Y], (X,), X, [1]],
}
VALUES = [
    *(X, Y, np.float32(2.5), np.ones((2, 2), dtype=np.int8).view(np.ma.MaskedArray)),
    *([X, Y], (Y,), [X, None], [], [X, 1]),
    *(0, 1, -1, 2**63, 2**63 - 1, True, False, 1.5, 2.0, float("inf"), np.int64(3), np.bool_(True)),
    *("a", "", "cpu", "cuda:1", None, [1, 2], (3,), [1.5], [1, "b"], b"raw", {}, object(), int),
]
values = st.sampled_from(VALUES)


@st.composite
def schemas(draw):
    """The text of a schema: its arguments, and its returns."""
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    first_keyword_only = draw(st.integers(0, len(names)))
    parts, must_have_default = [], False
    for place, name in enumerate(names):
        if place == first_keyword_only:
            parts.append("*")
            must_have_default = False
        kind = draw(st.sampled_from([k for k in DEFAULTS if DEFAULTS[k] or not must_have_default]))
        default = draw(st.sampled_from(DEFAULTS[kind] + [""] * (not must_have_default)))
        parts.append(f"{kind} {name}" + (f"={default}" if default else ""))
        must_have_default = must_have_default or (default != "" and place < first_keyword_only)
    return f"({', '.join(parts)}) -> {draw(st.sampled_from(list(RETURNS)))}"


@st.composite
def arguments(draw, schema):
    """Arguments for a call, mostly of a number and of names that fit, of any values."""
    names = [argument.name for argument in schema.arguments]
    args = draw(st.lists(values, max_size=len(names) + 1))
    rest = [name for name in names[len(args) :] if draw(st.integers(0, 4))]
    surplus = draw(st.sampled_from([[], [], [], [], *([name] for name in NAMES)]))
    return args, {name: draw(values) for name in dict.fromkeys([*rest, *surplus])}


class Recorder:
    """A kernel that notes what it receives; and the outcomes of calls, with types."""

    def __init__(self, result):
        self.result = result
        self.received = []

    def __call__(self, /, *args, **kwargs):
        self.received.append((typed(args), typed([*kwargs.items()])))
        return self.result

    def outcome(self, call, args, kwargs):
        """Return the kernel's arguments, and what the call returned or raised."""
        self.received = []
        try:
            ending = typed(call(*args, **kwargs))
        except OpdispatchError as error:
            ending = type(error), str(error)
        return self.received, ending


def typed(value):
    """The value with all its types, to compare: 1 is not True is not 1.0."""
    if isinstance(value, list | tuple):
        return type(value), [typed(item) for item in value]
    return type(value), value if isinstance(value, int | float | str | None) else id(value)


@settings(max_examples=200)
@given(st.data())
def test_compiled_calls_agree_with_their_specification(data):
    schema = parse_schema(f"t::f{data.draw(schemas())}")
    kernel = Recorder(data.draw(st.sampled_from(RETURNS[str(schema).rpartition(" -> ")[2]])))
    dispatcher = Dispatcher()
    dispatcher.register_def(schema)
    register = partial(dispatcher.register_impl, schema.name, K.CompositeImplicitAutograd)
    register(KernelFunction.from_unboxed(kernel))
    compiled = dispatcher.get_schema(schema.name)
    specification = OperatorHandle(compiled._entry)
    assert type(compiled) is not OperatorHandle
    for _ in range(data.draw(st.integers(1, 3))):
        args, kwargs = data.draw(arguments(schema))
        positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
        if kwargs.keys() & positional[: len(args)]:
            for op in (compiled, specification):
                with pytest.raises(TypeError):  # the compiled one may leave that to Python
                    op(*args, **kwargs)
            continue
        expected = kernel.outcome(specification, args, kwargs)
        register(KernelFunction.fallthrough()).close()  # what calls have learnt is forgotten
        for op in (compiled, compiled, specification):  # the first one teaches the second
            assert kernel.outcome(op, args, kwargs) == expected
            redispatch = partial(op.redispatch, DispatchKeySet.of(K.CPU))
            assert kernel.outcome(redispatch, args, kwargs) == expected
    assert dispatcher.check_invariants() == []


# -- what the properties are unlikely to say clearly ---------------------------------------------


def define(text, kernel, key=K.CompositeImplicitAutograd):
    dispatcher = Dispatcher()
    schema = parse_schema(text)
    dispatcher.register_def(schema)
    dispatcher.register_impl(schema.name, key, KernelFunction.from_unboxed(kernel))
    return dispatcher.get_schema(schema.name)


def test_a_keyword_only_argument_may_be_called_like_a_word_of_python():
    op = define("t::f(int n, *, int lambda=1, int async) -> int[]", lambda n, **k: list(k.values()))
    assert op(0, **{"async": 2}) == [1, 2]
    assert op(0, **{"lambda": 3, "async": 4}) == [3, 4]
    assert op(n=0, **{"lambda": 3, "async": 4}) == [3, 4]
    with pytest.raises(ArgumentError, match="t::f is missing its argument 'async'"):
        op(0)


def test_a_name_that_two_arguments_have_stands_for_both():
    op = define("t::f(int n, int n=2, *, int m=3) -> int[]", lambda a, b, *, m: [a, b, m])
    specification = OperatorHandle(op._entry)
    for call in (op, op, specification):
        assert [call(1), call(n=1), call(n=1, m=4)] == [[1, 2, 3], [1, 1, 3], [1, 1, 4]]


def test_keyword_arguments_follow_a_changed_schema_by_name():
    dispatcher = Dispatcher()
    kernel = KernelFunction.from_unboxed(lambda a, b: [a, b])
    name = parse_schema("t::f(int a, int b) -> int[]").name
    dispatcher.register_impl(name, K.CompositeImplicitAutograd, kernel)
    first = dispatcher.register_def(parse_schema("t::f(int a, int b) -> int[]"))
    op = dispatcher.get_schema(name)
    assert op(1, b=2) == op(b=2, a=1) == [1, 2]
    first.close()
    dispatcher.register_def(parse_schema("t::f(int b, int a) -> int[]"))
    assert op(b=2, a=1) == [2, 1]
    with pytest.raises(ArgumentError, match="t::f got its argument 'b' twice"):
        op(1, b=2)


def test_boxed_redispatches_agree_with_their_specification():
    op = define("t::f(Tensor x, *, int n=1) -> Tensor", lambda x, *, n: x if n else n, K.CPU)
    specification, keys = OperatorHandle(op._entry), DispatchKeySet.of(K.CPU)
    for call in (op.redispatch_boxed, op.redispatch_boxed, specification.redispatch_boxed):
        stack = [X, 1]
        call(keys, stack)
        assert len(stack) == 1
        assert stack[0] is X
        with pytest.raises(ReturnError, match="t::f returned what its schema does not promise"):
            call(keys, [X, 0])
        with pytest.raises(NoKernelError, match="no kernel for arguments from the CUDA backend"):
            call(DispatchKeySet.of(K.CUDA), [X, 1])


def test_the_names_of_the_generated_code_are_no_names_of_arguments():
    op = define("t::f(int lambda, *, int async=1) -> int", lambda n, **_: n)
    for name in ("_a0", "_a1", "_d1", "_op", "self"):
        with pytest.raises(ArgumentError, match=f"t::f has no argument '{name}'"):
            op(1, **{name: 2})


def test_an_argument_that_is_given_twice_is_refused_by_python_itself():
    op = define("t::f(int n, int m=2) -> int", lambda n, m: n)
    with pytest.raises(TypeError, match="multiple values for argument 'n'"):
        op(1, n=2)
    with pytest.raises(ArgumentError, match="t::f got its argument 'n' twice"):
        OperatorHandle(op._entry)(1, n=2)


def test_positional_arguments_may_be_renamed_under_a_handle():
    dispatcher = Dispatcher()
    name = parse_schema("t::f(Tensor x, int n) -> int").name
    kernel = KernelFunction.from_unboxed(lambda x, n: n)
    dispatcher.register_impl(name, K.CompositeImplicitAutograd, kernel)
    first = dispatcher.register_def(parse_schema("t::f(Tensor x, int n) -> int"))
    op, packet = dispatcher.get_schema(name), Ops(dispatcher).t.f
    assert op(X, 1) == packet(X, 1) == 1
    first.close()
    dispatcher.register_def(parse_schema("t::f(Tensor picture, int size) -> int"))
    assert op(X, 2) == packet(X, 2) == 2
    assert op(X, size=3) == packet(picture=X, size=3) == 3
    with pytest.raises(ArgumentError, match="t::f has no argument 'n'"):
        op(X, n=2)


@pytest.mark.parametrize("kind", ["Any", "t", "Any?", "int"])
def test_a_missing_argument_is_missed_whatever_its_type(kind):
    op = define(f"t::f({kind} x) -> int", lambda x: 1)
    assert op(3) == 1
    with pytest.raises(ArgumentError, match="t::f is missing its argument 'x'"):
        op()


def test_an_argument_may_be_a_subclass_of_an_array_seen_for_the_first_time():
    class Picture(np.ndarray):
        pass

    op = define("t::f(Tensor x) -> Tensor", lambda x: x, K.CPU)
    op(X)
    picture = X.view(Picture)
    assert op(picture) is picture


def test_a_known_call_takes_the_short_way():
    op = define("t::f(Tensor x, int n=1) -> Tensor", lambda x, n: x, K.CPU)
    taken = []
    op(X)
    sys.setprofile(lambda frame, event, _: taken.append(frame.f_code.co_name))
    try:
        op(X, 2)
    finally:
        sys.setprofile(None)
    assert "interpret_call" not in taken
    assert "<lambda>" in taken


@pytest.mark.parametrize("others", [[], [None], [X], [Y, None]])
@pytest.mark.parametrize("x", [X, Y, Tensor(X, requires_grad=True)])
def test_a_list_of_optional_tensors_counts_for_the_kernel_if_it_has_any(x, others):
    found = []
    op = define("t::f(Tensor x, Tensor?[] others) -> ()", lambda x, others: found.append("CPU"))
    op.call_converted(x, [])  # the kernel without others is known
    library = Library("t", "IMPL", dispatcher=op.dispatcher)
    library.impl("f", lambda x, others: found.append("AutogradCPU"), "AutogradCPU")
    for _ in range(2):
        op(x, others)
        op.call_converted(x, [*others])
    has_tensor = any(type(each) is Tensor for each in [x, *others])
    assert found == ["CPU", *["AutogradCPU" if has_tensor else "CPU"] * 4]


def test_operators_of_one_shape_share_one_class():
    one = define("t::f(Tensor x, int n=1) -> Tensor", lambda x, n: x)
    two = define("u::g.other(Tensor x, int n=1) -> Tensor", lambda x, n: x)
    other = define("t::f(Tensor x, int n=2) -> Tensor", lambda x, n: x)
    assert type(one) is type(two)
    assert type(one) is not type(other)
    assert issubclass(type(one), OperatorHandle)
    with pytest.raises(ArgumentError, match=r"u::g\.other is missing its argument 'x'"):
        two()


def test_a_class_goes_with_its_last_operator():
    gc.collect()
    shape = "(Tensor x, int only_here=5) -> Tensor"
    op = define(f"t::f{shape}", lambda x, n: x)
    filename = f"<opdispatch call {shape}>"
    assert shape in compiled_call._classes
    assert filename in linecache.cache
    del op
    gc.collect()
    assert shape not in compiled_call._classes
    assert filename not in linecache.cache


def test_a_traceback_shows_the_generated_lines():
    def fail(x):
        raise ValueError("no")

    op = define("t::f(Tensor x) -> Tensor", fail, K.CPU)
    with pytest.raises(ValueError, match="no"):
        op(X)
    with pytest.raises(ValueError, match="no") as caught:
        op(X)
    text = "".join(traceback.format_exception(caught.value))
    assert 'File "<opdispatch call (Tensor x) -> Tensor>"' in text
    assert "_r = _k(x)" in text


def test_the_generated_parameters_are_the_ones_of_the_schema():
    op = define("t::f(Tensor x, int n=1, *, str mode='a') -> Tensor", lambda x, n, *, mode: x)
    parameters = list(inspect.signature(type(op).__call__).parameters)
    assert parameters == ["_op", "x", "n", "_extra", "mode", "_more"]


def test_an_operator_without_a_schema_has_nothing_to_compile(monkeypatch):
    assert handle_class_for(None) is OperatorHandle
    schema = parse_schema("t::f(Tensor x) -> Tensor")
    monkeypatch.setattr(compiled_call, "COMPILE", False)
    assert handle_class_for(schema) is OperatorHandle


@pytest.mark.parametrize(("more", "is_compiled"), [(0, True), (1, False)])
def test_an_operator_with_very_many_arguments_is_left_to_the_twin(dispatcher, more, is_compiled):
    count = MOST_ARGUMENTS + more
    arguments = ", ".join(f"int x{i}" for i in range(count))
    schema = parse_schema(f"t::f({arguments}) -> int")
    dispatcher.register_def(schema)
    kernel = KernelFunction.from_unboxed(lambda *numbers: sum(numbers))
    dispatcher.register_impl(schema.name, DispatchKey.CompositeImplicitAutograd, kernel)
    op = dispatcher.get_schema("t::f")
    assert (type(op) is not OperatorHandle) is is_compiled
    assert op(*range(count)) == op(*range(count - 1), **{f"x{count - 1}": count - 1})
    assert op(*range(count)) == sum(range(count))


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_environment_leaves_everything_to_the_twin(value):
    program = "from opdispatch.dispatch import compiled_call; print(compiled_call.COMPILE)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OPDISPATCH_COMPILE": value},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == str(value == "1")


def test_memory_does_not_grow_with_the_key_sets_of_callers():
    op = define("t::f(Tensor x) -> Tensor", lambda x: x)
    for place in range(400):
        op(Tensor(X, keys=DispatchKeySet(place)))
        op.redispatch(DispatchKeySet(place), X)
    assert len(op._entry.calls) == len(op._entry.redispatches) == 256
    assert op(X) is X


def test_a_call_that_writes_counts_one_version_whatever_its_kernel_does():
    with Library("counted", "DEF", dispatcher=(dispatcher := Dispatcher())) as library:
        library.define("once_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
        library.impl("once_", lambda x, y: x, "CPU")
        library.define("itself_(Tensor(a!) x, Tensor y) -> Tensor(a!)")

        def write(x, y):
            x[...] = y
            return x

        library.impl("itself_", write, "CPU")
        library.define("fails_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
        library.impl("fails_", lambda x, y: 1 / 0, "CPU")
        ops = Ops(dispatcher).counted
        x = Tensor(np.ones(2))
        view = x[:]
        for number, name in enumerate(["once_", "itself_"] * 3, start=1):
            assert getattr(ops, name)(view, x) is view
            assert (x._version, view._version) == (number, number)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                ops.fails_(x, view)
        assert x._version == 6
        leaf = Tensor(np.ones(2), requires_grad=True)
        made = leaf * 2
        ops.once_(made, x)
        assert (made._version, type(made.grad_fn).__name__) == (1, "NotImplementedNode")
