"""Programs with views and writes, functionalized, where a device has neither.

The interpreter's device is the simulated accelerator, whose kernels for views and writes refuse.
What is functionalized in the client arrives there as calls, or as the graph of a trace; and kernels
functionalize where they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor, functionalize, register_backend, trace
from opdispatch import array_api as xp
from tests import simulated_accelerator, writeless_accelerator
from tests.service.running_daemon import RunningDaemon
from tests.simulated_accelerator import Accelerator, AcceleratorArray
from tests.writeless_accelerator import HERE

SHARED_WORKERS = 1
X = np.arange(6.0).reshape(2, 3)


def program(x: Any) -> Any:
    """Views, writes through them, and views of what was written to."""
    rows = xp.unstack(x, axis=0)
    rows[1][...] = rows[0] * 10
    turned = xp.permute_dims(x, (1, 0))
    turned[1:, 0] = 7
    flat = xp.reshape(x, (-1,))
    flat[0] += 1
    return flat, xp.sum(rows[0]), xp.matrix_transpose(x)


LIBRARY = "\n".join(
    [
        inspect.getsource(simulated_accelerator),
        inspect.getsource(writeless_accelerator)
        .replace("from __future__ import annotations\n", "")
        .replace("from tests.simulated_accelerator import AcceleratorArray\n", ""),
        "from opdispatch import array_api as xp, functionalize, register_backend",
        inspect.getsource(program),
        """
register_backend(Accelerator())
kernels = implement_operators()
# Tensors in an interpreter have operators of their own.
own_kernels = implement_operators(OPERATORS.add.Tensor.dispatcher)

lib = Library("programs", "DEF")
lib.define("run(Tensor(a!) x) -> (Tensor, Tensor, Tensor)")
lib.define("run_as_it_is(Tensor(a!) x) -> (Tensor, Tensor, Tensor)")
lib.impl("run", functionalize(program, remove="mutations_and_views"), "PrivateUse1")
lib.impl("run_as_it_is", program, "PrivateUse1")
lib.define("zero_(Tensor(a!) x) -> Tensor(a!)")
lib.impl("zero_", lambda x: (x.fill(0.0), x)[1], "CPU")
""",
    ]
)


@pytest.fixture(scope="module")
def session(shared_daemon: RunningDaemon) -> Iterator[oc.Session]:
    path = shared_daemon.folder / "programs.py"
    path.write_text(LIBRARY)
    with shared_daemon.connect() as session:
        session.load("opdispatch.array_library", on="worker-1")
        session.load(path, on="worker-1")
        yield session


@pytest.fixture(scope="module", autouse=True)
def accelerator() -> Iterator[Accelerator]:
    """The client's own: it is another process than the interpreters."""
    backend = Accelerator()
    registration = register_backend(backend)
    yield backend
    registration.close()


@pytest.fixture
def remote(session: oc.Session) -> oc.RemoteTensor:
    return session.put(AcceleratorArray(X.copy()))


def check(results: Any, written: Any) -> None:
    x = Tensor(X.copy())
    for one, other in zip((*results, written), (*program(x), x), strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


def fetched(tensors: Any) -> list[Any]:
    return [each.numpy() for each in tensors]


def test_a_kernel_functionalizes_its_program(session: oc.Session, remote: oc.RemoteTensor):
    results = session.call("programs::run", remote, remote=True)
    assert {each.device for each in results} == {HERE}
    check(fetched(results), remote.numpy())
    with pytest.raises(oc.KernelError, match="RefusedError: unstack"):
        session.call("programs::run_as_it_is", remote)


def test_calls_of_the_client_are_functionalized(session: oc.Session, remote: oc.RemoteTensor):
    with pytest.raises(oc.KernelError, match="RefusedError: unstack"):
        program(remote)
    results = functionalize(program, remove="mutations_and_views")(remote)
    check(fetched(results), remote.numpy())


def test_a_call_of_a_session_that_writes_is_refused_within(session: oc.Session):
    x = Tensor(X.copy())
    zero = functionalize(lambda x: session.ops.programs.zero_(x))
    with pytest.raises(oc.NoKernelError, match="functionalized in this process; one of another"):
        zero(x)
    np.testing.assert_array_equal(x, X)


def test_a_graph_is_traced_of_the_functionalized_program(
    session: oc.Session, remote: oc.RemoteTensor
):
    graph = trace(functionalize(program, remove="mutations_and_views"), X.copy())
    run = session.as_program(graph, remote=True)
    results = run(remote)
    check(fetched(results), remote.numpy())
