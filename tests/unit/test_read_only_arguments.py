"""Kernels get read-only arguments in process with ``OPDISPATCH_STRICT=1``, as in the service."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from opdispatch import Library, Tensor, array_api, custom_op, ops
from opdispatch.boxing import read_only_arguments
from tests.waits import LONGEST_WAIT


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_only_arguments, "STRICT", True)


@pytest.fixture
def lib():
    with Library("strict", "DEF") as lib:
        yield lib


def define(lib, schema, kernel, key="CPU"):
    name = lib.define(schema)
    lib.impl(name, kernel, key)


def write(x, *others, **named):
    for each in (x, *others, *named.values()):
        for array in each if isinstance(each, list) else [each]:
            (array.array if isinstance(array, Tensor) else array)[0] = 9
    return np.zeros(1)


@pytest.mark.parametrize("key", ["CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"])
def test_undeclared_write_says_how_to_declare_it(strict, lib, key):
    define(lib, "one(Tensor x) -> Tensor", write, key)
    define(lib, "several(Tensor(a!) x, Tensor[] ys) -> Tensor", write, key)
    define(lib, "named(Tensor(a!) x, *, Tensor? y) -> Tensor", write, key)
    x = np.arange(3.0)
    for call in (
        lambda: ops.strict.one(x),
        lambda: ops.strict.several(np.zeros(1), [x]),
        lambda: ops.strict.named(np.zeros(1), y=x),
    ):
        with pytest.raises(ValueError, match="read-only") as caught:
            call()
        assert any("Tensor(a!) x" in note for note in caught.value.__notes__)
    assert x.tolist() == [0, 1, 2]
    assert x.flags.writeable


def test_undeclared_write_to_a_tensor_is_refused(strict, lib):
    define(lib, "one(Tensor x) -> Tensor", write)
    for tensor in (Tensor(np.arange(3.0)), Tensor(np.arange(3.0), requires_grad=True)):
        with pytest.raises(ValueError, match="read-only"):
            ops.strict.one(tensor)
        assert tensor.array.tolist() == [0, 1, 2]


def test_declared_writes_are_the_callers_own(strict, lib):
    def add_(x, y):
        x += y
        return x

    define(lib, "add_(Tensor(a!) x, Tensor y) -> Tensor(a!)", add_)
    x = np.ones(2)
    assert ops.strict.add_(x, x) is x
    assert x.tolist() == [2, 2]
    tensor = Tensor(np.ones(2))
    array_api.add(tensor, tensor)
    tensor += 1
    assert tensor.array.tolist() == [2, 2]


def test_results_are_as_writable_as_they_were(strict, lib):
    define(lib, "same(Tensor(a) x) -> Tensor(a)", lambda x: x)
    define(lib, "part(Tensor(a) x) -> Tensor(a)", lambda x: x[1:])
    define(lib, "parts(Tensor(a) x) -> (Tensor(a) one, Tensor[] others)", lambda x: (x, [x[:1]]))
    constant = np.frombuffer(bytes(16))
    define(lib, "constant(Tensor x) -> Tensor", lambda x: constant)
    x = np.arange(3.0)
    assert ops.strict.same(x) is x
    ops.strict.part(x)[0] = 9
    assert x.tolist() == [0, 9, 2]
    result = ops.strict.parts(x)
    assert result.one is x
    assert result.others[0].flags.writeable
    assert not ops.strict.constant(x).flags.writeable


def test_one_array_given_twice_is_one_to_the_kernel(strict, lib):
    define(lib, "same(Tensor x, Tensor y) -> bool", lambda x, y: x is y)
    x = np.arange(3.0)
    assert ops.strict.same(x, x)
    assert not ops.strict.same(x, x.copy())


def test_gradients_are_what_they_were(strict):
    @custom_op("strict_custom::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_autograd(lambda ctx, grad: grad * 2)
    try:
        x = Tensor(np.arange(3.0), requires_grad=True)
        array_api.sum(double(x) * x).backward()
        assert np.asarray(x.grad).tolist() == [0, 4, 8]
    finally:
        double.close()


def test_without_it_kernels_get_the_arrays_themselves(lib):
    given = []
    define(lib, "keep(Tensor x) -> ()", given.append)
    x = np.arange(3.0)
    ops.strict.keep(x)
    assert given[0] is x


@pytest.mark.parametrize(("value", "strict"), [("1", True), ("0", False), ("", False)])
def test_environment_variable_is_read_once(value, strict):
    code = "from opdispatch.boxing import read_only_arguments as r; print(r.STRICT)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"OPDISPATCH_STRICT": value},
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    assert run.stdout.strip() == str(strict)
