"""Values that move between interpreters leave their graph behind: gradients say what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import AutogradError, Tensor, no_grad
from tests.service.running_daemon import RunningDaemon

LIBRARY = """\
from opdispatch import Library, array_api as xp

lib = Library("{name}", "DEF")
lib.define("square(Tensor x) -> Tensor")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.define("add_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
lib.define("through(Tensor x) -> Tensor")
lib.impl("square", lambda x: x * x)
lib.impl("add", lambda x, y: x + y)


def add_(x, y):
    x[...] = x + y
    return x


def through(x):
    from opdispatch import ops

    return ops.right.square(x) + x


lib.impl("add_", add_)
lib.impl("through", through)
"""
X = np.array([1.0, 2.0])


@pytest.fixture(scope="module")
def session(shared_daemon: RunningDaemon, tmp_path_factory) -> Iterator[oc.Session]:
    folder = tmp_path_factory.mktemp("libraries")
    with shared_daemon.connect() as session:
        for name, interpreter in {"left": "worker-1", "right": "worker-2"}.items():
            (folder / f"{name}.py").write_text(LIBRARY.format(name=name))
            session.load(folder / f"{name}.py", on=interpreter)
        session.load("opdispatch.array_library", interpreters=2)
        yield session
        for name in ("left", "right", "array_library"):
            session.unload(name)


def operators(session: oc.Session, name: str):
    return getattr(session.with_options(remote=True).ops, name)


def gradients(session: oc.Session, of: oc.RemoteTensor, *inputs: oc.RemoteTensor):
    ones = session.put(np.ones(2))
    return [each.numpy().tolist() for each in session.grad(of, inputs, ones)]


def test_a_gradient_that_would_lack_what_was_left_behind_is_an_error(session: oc.Session):
    x = session.put(Tensor(X, requires_grad=True), on="worker-1")
    square = operators(session, "left").square(x)
    both = operators(session, "right").add(square, x)  # moves both to worker-2
    assert both.interpreter == "worker-2"
    with pytest.raises(oc.KernelError, match="came from interpreter worker-1, and has left its"):
        gradients(session, both, x)
    assert gradients(session, both, square) == [[1.0, 1.0]]


def test_leaves_that_move_together_keep_their_gradients(session: oc.Session):
    x = session.put(Tensor(X, requires_grad=True), on="worker-1")
    y = session.put(Tensor(X + 1, requires_grad=True), on="worker-1")
    both = operators(session, "right").add(operators(session, "right").square(x), y)
    assert both.interpreter == "worker-2"
    assert gradients(session, both, x, y) == [[2.0, 4.0], [1.0, 1.0]]


def test_leaf_that_was_away_between_two_uses_raises(session: oc.Session):
    x = session.put(Tensor(X, requires_grad=True), on="worker-1")
    square = operators(session, "left").square(x)
    with no_grad():
        operators(session, "right").square(x)
    assert x.interpreter == "worker-2"
    both = operators(session, "left").add(square, x)
    assert both.interpreter == "worker-1"
    with pytest.raises(oc.KernelError, match="has been in interpreter worker-2 since it was used"):
        gradients(session, both, x)
    assert gradients(session, operators(session, "left").square(x), x) == [[2.0, 4.0]]


def test_gradients_skip_unrecorded_write_to_remote_tensor(session: oc.Session):
    x = session.put(Tensor(X, requires_grad=True), on="worker-1")
    total = session.put(np.zeros(2), on="worker-1")
    square = operators(session, "left").square(x)
    with no_grad():
        operators(session, "left").add_(total, square)
    both = operators(session, "right").add(total, x)
    assert gradients(session, both, x) == [[1.0, 1.0]]  # nothing of `total` was recorded


def test_kernel_that_calls_another_interpreter_raises_in_backward(session: oc.Session):
    x = session.put(Tensor(X, requires_grad=True), on="worker-1")
    made = operators(session, "left").through(x)
    np.testing.assert_array_equal(made.numpy(), X * X + X)
    with pytest.raises(oc.KernelError, match="a call that was made in interpreter worker-2"):
        gradients(session, made, x)


def test_result_of_a_tensor_of_this_process_has_no_backward_pass(session: oc.Session):
    x = Tensor(X, requires_grad=True)
    made = session.call("left::square", x)
    assert made.requires_grad
    with pytest.raises(AutogradError, match="a call that was made in interpreter worker-1"):
        (made + x).backward(Tensor(np.ones(2)))
    with no_grad():
        assert not session.call("left::square", x).requires_grad
