"""Classes of tensors that handle operators themselves, by the key Python."""

import numpy as np
import pytest

from opdispatch import ArgumentError, DispatchKey, DispatchKeySet, Tensor, arrays
from opdispatch.arrays import tensor_types
from opdispatch.local_state.local_dispatch_key_set import ExcludeDispatchKeyGuard

K = DispatchKey


@pytest.fixture(autouse=True)
def _types_are_forgotten(monkeypatch):
    monkeypatch.setattr(tensor_types, "_types_with_keys", tensor_types._types_with_keys)


def make_class(name="Logged", base=object, answer=None):
    """A class of tensors that notes what it is asked, and then answers, or calculates."""

    def handle(cls, func, types, args=(), kwargs=None):
        cls.asked.append((str(func.name), types, args, kwargs))
        if answer is not None:
            return answer
        unwrapped = [getattr(value, "array", value) for value in args]
        return cls(func(*unwrapped, **(kwargs or {})))

    def init(self, array):
        self.array = np.asarray(array)

    cls = type(
        name,
        (base,),
        {
            "__init__": init,
            "key_bits": DispatchKeySet.of(K.Python).bits,
            "asked": [],
            "__torch_dispatch__": classmethod(handle),
        },
    )
    arrays.register_tensor_type(cls)
    return cls


@pytest.fixture
def add(define):
    return define(
        "arithmetic::add(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor",
        CPU=lambda x, y, *, alpha: np.asarray(x) + alpha * np.asarray(y),
    )


def test_a_class_is_asked_for_its_tensors(add, caller):
    logged = make_class()
    x = logged([1.0, 2.0])
    result = add(x, np.ones(2), alpha=3)
    assert type(result) is logged
    assert result.array.tolist() == [4, 5]
    [(name, types, args, kwargs)] = logged.asked
    assert (name, types, kwargs) == ("arithmetic::add", (logged,), {"alpha": 3})
    assert args[0] is x


def test_defaults_are_left_out(add):
    logged = make_class()
    add(np.ones(2), logged([1.0]))
    assert logged.asked[0][3] == {}


def test_handler_runs_below_autograd_and_before_backends(add):
    logged = make_class()
    assert add(Tensor(np.ones(2), requires_grad=True), logged([1.0])).array.tolist() == [2, 2]


def test_tensors_in_lists_count(define):
    logged = make_class(answer=np.zeros(1))
    total = define("arithmetic::total(Tensor[] xs) -> Tensor", CPU=lambda xs: sum(xs))
    assert total([np.ones(2), logged([1.0])]).tolist() == [0]
    assert len(logged.asked) == 1


def test_derived_classes_are_asked_first(add):
    base = make_class("Base")
    derived = make_class("Derived", base, answer=NotImplemented)
    add(base([1.0]), derived([1.0]))
    assert derived.asked[0][1] == (derived, base)
    assert len(base.asked) == 1


def test_a_call_that_no_class_handles_is_an_error(add):
    one, other = (
        make_class("One", answer=NotImplemented),
        make_class("Other", answer=NotImplemented),
    )
    with pytest.raises(ArgumentError, match=r"arithmetic::add handles it: One, Other"):
        add(one([1.0]), other([1.0]))


def test_several_results_and_none(define):
    pair = define("arithmetic::pair(Tensor x) -> (Tensor, int)", CPU=lambda x: (x, 1))
    nothing = define("arithmetic::nothing(Tensor x) -> ()", CPU=lambda x: None)
    assert pair(make_class(answer=(np.ones(1), 7))([1.0]))[1] == 7
    logged = make_class()
    logged.__torch_dispatch__ = classmethod(lambda *_: None)
    assert nothing(logged([1.0])) is None


def test_excluded_key_calls_no_handler(add):
    logged = make_class()
    with ExcludeDispatchKeyGuard(DispatchKeySet.of(K.Python)), pytest.raises(NotImplementedError):
        add(logged([1.0]), logged([1.0]))
    assert logged.asked == []


def test_redispatches_come_to_it(add):
    logged = make_class()
    add.redispatch(DispatchKeySet.of(K.Python, K.CPU), logged([1.0]), np.ones(1))
    assert len(logged.asked) == 1
