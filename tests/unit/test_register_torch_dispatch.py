"""``register_torch_dispatch``: what a mode or a class of tensors does with one operator."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DispatchKey,
    DuplicateDefinitionError,
    KernelTypeError,
    Library,
    RegistrationError,
    ReturnError,
    Tensor,
    TorchDispatchMode,
    custom_op,
    default_dispatcher,
    ops,
    register_torch_dispatch,
)

X = np.ones(2)


class Noting(TorchDispatchMode):
    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func.name))
        return func(*args, **(kwargs or {}))


class Derived(Noting):
    pass


class Tagged(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


@pytest.fixture
def lib():
    with Library("ruled", "DEF") as lib:
        for name in ("f", "g"):
            lib.define(f"{name}(Tensor x, float by=2.0) -> Tensor")
            lib.impl(name, lambda x, by: x * by, "CPU")
        yield lib
    assert default_dispatcher().check_invariants() == []


def answer(mode, func, types, args, kwargs):
    return args[0] + 100


def test_a_function_handles_one_operator_for_modes_of_a_class(lib):
    seen = []

    @register_torch_dispatch("ruled::f", Noting, lib=lib)
    def rule(mode, func, types, args, kwargs):
        seen.append((mode, func.name.name, types, len(args), kwargs))
        return args[0] + 100

    with Noting() as mode:
        np.testing.assert_array_equal(ops.ruled.f(X), X + 100)
        np.testing.assert_array_equal(ops.ruled.g(X, 3.0), X * 3)
    assert seen == [(mode, "ruled::f", (), 1, {})]
    assert mode.seen == ["ruled::g"]
    with Derived() as mode:  # another class, though it is derived from it
        np.testing.assert_array_equal(ops.ruled.f(X), X * 2)
    assert mode.seen == ["ruled::f"]


def test_calls_of_a_rule_reach_the_next_mode(lib):
    register_torch_dispatch("ruled::f", Noting, lambda m, func, t, args, k: func(*args), lib=lib)
    with Derived() as outer, Noting() as inner:
        np.testing.assert_array_equal(ops.ruled.f(X), X * 2)
    assert (outer.seen, inner.seen) == (["ruled::f"], [])


def test_not_implemented_leaves_the_call_to_classes_of_tensors(lib):
    register_torch_dispatch("ruled::f", Noting, lambda *call: NotImplemented, lib=lib)
    with Noting(), pytest.raises(ArgumentError, match="no mode and no class"):
        ops.ruled.f(X)
    register_torch_dispatch(
        ops.ruled.f.default, Tagged, lambda cls, f, types, args, k: (cls, types)[0](X * 7), lib=lib
    )
    with Noting():
        result = ops.ruled.f(Tagged(X))
    assert type(result) is Tagged
    np.testing.assert_array_equal(result.array, X * 7)


def test_a_class_that_leaves_a_call_leaves_it_to_the_next(lib):
    class Closer(Tagged):
        pass

    lib.register_torch_dispatch("f", Closer, lambda *call: NotImplemented)
    lib.register_torch_dispatch("f", Tagged, lambda cls, f, types, args, kwargs: cls(X * 7))
    lib.define("both(Tensor x, Tensor y) -> Tensor")
    lib.register_torch_dispatch("both", Closer, lambda *call: NotImplemented)
    lib.register_torch_dispatch("both", Tagged, lambda cls, f, types, args, kwargs: cls(X * 7))
    with pytest.raises(ArgumentError, match="no mode and no class"):
        ops.ruled.f(Closer(X))
    assert type(ops.ruled.both(Tagged(X), Closer(X))) is Tagged


def test_modes_that_see_calls_before_any_other_key(lib):
    register_torch_dispatch("ruled::f", Noting, answer, lib=lib)
    with Noting(_dispatch_key=DispatchKey.PreDispatch):
        np.testing.assert_array_equal(ops.ruled.f(X), X + 100)


def test_rule_ends_with_its_library(lib):
    with Library("ruled", "FRAGMENT") as other, Noting():
        register_torch_dispatch("ruled::f", Noting, answer, lib=other)
        np.testing.assert_array_equal(ops.ruled.f(X), X + 100)
        other.close()
        np.testing.assert_array_equal(ops.ruled.f(X), X * 2)


def test_there_is_one_for_each_class(lib):
    handle = lib.register_torch_dispatch("f", Noting, answer)
    assert str(handle.registration) == "dispatch rule of Noting for ruled::f"
    with pytest.raises(DuplicateDefinitionError, match="Noting has a rule for ruled::f already"):
        lib.register_torch_dispatch("f", Noting, answer)
    lib.register_torch_dispatch("f", Derived, answer)
    handle.close()
    lib.register_torch_dispatch("f", Noting, answer)


def test_a_transaction_that_fails_leaves_none_behind(lib):
    with Noting():
        with default_dispatcher().transaction() as transaction:
            lib.register_torch_dispatch("f", Noting, answer)
            transaction.rollback()
        np.testing.assert_array_equal(ops.ruled.f(X), X * 2)


def test_the_operator_may_be_defined_later(lib):
    lib.register_torch_dispatch("later", Noting, answer)
    assert "ruled::later" not in map(str, default_dispatcher().operators())
    lib.define("later(Tensor x) -> Tensor")
    with Noting():
        np.testing.assert_array_equal(ops.ruled.later(X), X + 100)


def test_a_result_is_checked(lib):
    register_torch_dispatch("ruled::f", Noting, lambda *call: "text", lib=lib)
    with Noting(), pytest.raises(ReturnError):
        ops.ruled.f(X)


@pytest.mark.parametrize("cls", [int, 3, Noting()])
def test_rule_for_an_unrelated_class_is_refused(lib, cls):
    with pytest.raises(KernelTypeError, match="requires a class of modes or tensors"):
        register_torch_dispatch("ruled::f", cls, answer, lib=lib)


def test_invalid_rule_raises(lib):
    with pytest.raises(KernelTypeError, match="a rule must be callable"):
        lib.register_torch_dispatch("f", Noting, 3)
    with pytest.raises(RegistrationError, match="of another namespace"):
        lib.register_torch_dispatch("others::f", Noting, answer)
    lib.close()
    with pytest.raises(RegistrationError, match="has been closed"):
        lib.register_torch_dispatch("f", Noting, answer)


def test_of_a_custom_op():
    @custom_op("ruled_custom::f", mutates_args=())
    def f(x: Tensor) -> Tensor:
        return Tensor(x.array * 2)

    @f.register_torch_dispatch(Noting)
    def _(mode, func, types, args, kwargs):
        return args[0]

    x = Tensor(X)
    with Noting():
        assert f(x) is x
        f.register_torch_dispatch(Noting, lambda mode, func, types, args, kwargs: args[0] * 5)
        np.testing.assert_array_equal(f(x).array, X * 5)
    f.close()
