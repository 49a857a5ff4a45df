"""Programs with a real daemon: one message, one interpreter, what was asked for, and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2
from tests.service.remote import MATH, MORE, kept, nothing_is_kept
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT
from tests.work_done import cpu_seconds, measure_work

X = np.arange(4.0)


def run(session: oc.Session, record: Callable[[oc.Program], None]) -> object:
    """A program that ``record`` writes; what comes of it."""
    with session.program() as p:
        record(p)
    return p.result


@pytest.fixture(scope="module")
def loaded(shared_daemon: RunningDaemon) -> RunningDaemon:
    """The shared daemon: `calc` in one interpreter, `more` in the other."""
    with shared_daemon.connect() as session:
        for name, text in (("calc", MATH), ("more", MORE)):
            path = shared_daemon.folder / f"{name}.py"
            path.write_text(text)
            session.load(path, on="worker-1" if name == "calc" else "worker-2")
    return shared_daemon


@pytest.fixture
def session(loaded: RunningDaemon) -> Iterator[oc.Session]:
    """A session; after the test nothing is kept, and nothing runs."""
    with loaded.connect() as session:
        yield session
    with loaded.connect() as other:
        assert nothing_is_kept(other)
        assert all(not each.calls_in_flight for each in other.interpreters())


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_a_program_returns_what_is_asked_for(loaded: RunningDaemon, lane: str):
    with loaded.connect(lane=lane) as session:
        x = session.put(X)
        with session.program() as p:
            total = p.ops.math.add(x, np.ones(4))
            two = p.call("math::two", total)
            doubled, size = two[0], two[1]
            rows = p.ops.math.rows(doubled)
            p.output(p.ops.math.total(rows), size)
            p.output(doubled, rows, remote=True)
        total, size, doubled, rows = p.result
        assert total.tolist() == 20
        assert size == 4
        assert doubled.numpy().tolist() == [2, 4, 6, 8]
        assert [row.numpy().tolist() for row in rows] == [2, 4, 6, 8]
        assert p.results[1] == 4
        assert repr(p) == "<Program of 4 calls [done]>"


def test_a_program_is_one_call(session: oc.Session):
    before = sum(each.calls_total for each in session.interpreters())
    x = session.put(X, on="worker-1")
    with session.program() as p:
        value = x
        for _ in range(1000):
            value = p.ops.math.add(value, x)
        p.output(value)
    assert p.result.tolist() == (X * 1001).tolist()
    assert sum(each.calls_total for each in session.interpreters()) == before + 2


def test_program_writes_to_remote_tensors_but_not_to_arrays(session: oc.Session):
    """A remote tensor changes where it is; an array is the program's own copy."""
    x, mine = session.put(np.zeros(4)), np.zeros(4)
    with session.program() as p:
        p.ops.math.iadd_(x, X)
        p.output(p.ops.math.iadd_(mine, X))
        p.ops.math.fill_([x], 5.0)
    assert p.result.tolist() == X.tolist()
    assert mine.tolist() == [0] * 4
    assert x.numpy().tolist() == [5] * 4


def test_without_outputs_nothing_comes_back(session: oc.Session):
    with session.program() as p:
        p.ops.math.add(X, X)
    assert p.result is None
    with session.program() as p:
        pass
    assert p.result is None


def test_an_input_may_be_asked_for(session: oc.Session):
    x = session.put(X)
    with session.program() as p:
        p.output(x, X)
        p.output(x, remote=True)
    first, second, copy = p.result
    assert first.tolist() == second.tolist() == X.tolist()
    session.ops.math.iadd_(x, X)
    assert copy.numpy().tolist() == X.tolist()


def test_operators_of_other_interpreters_are_forwarded(session: oc.Session):
    x = session.put(X)
    with session.program() as p:
        total = p.ops.math.add(x, x)
        for _ in range(2):
            total = p.ops.math.add(total, x)
        p.output(p.ops.more.mul(total, p.ops.more.twice(x)), remote=True)
    assert p.result.numpy().tolist() == (X * 4 * X * 2).tolist()
    assert p.result.interpreter == "worker-1", "that has most of its operators"


@pytest.mark.parametrize(
    ("operator", "error", "message"),
    [
        ("math::boom", oc.KernelError, "step 2 of the program: the kernel of math::boom in"),
        ("math::nothing", oc.OperatorNotFoundError, "step 2 of the program: there is no operator"),
        ("math::add", oc.ArgumentError, "step 2 of the program: math::add is missing its argument"),
        ("no name", oc.OperatorNotFoundError, "step 2 of the program: there is no operator"),
    ],
)
def test_an_error_names_its_step(session: oc.Session, operator: str, error: type, message: str):
    def record(p: oc.Program) -> None:
        value = p.ops.math.same(p.ops.math.add(X, X))
        p.output(p.call(operator, value), remote=True)

    with pytest.raises(error, match=message) as caught:
        run(session, record)
    assert caught.value.facts["step"] == "2"
    assert caught.value.facts["operator"] == operator
    assert kept(session) == {}


def test_an_error_of_an_operator_elsewhere_names_its_step(session: oc.Session):
    def record(p: oc.Program) -> None:
        p.output(p.ops.more.mul(p.ops.math.same(X), np.ones(3)))

    with pytest.raises(oc.KernelError, match="step 1 of the program") as caught:
        run(session, record)
    assert "could not be broadcast" in str(caught.value)


def test_no_kernel_for_the_keys_names_its_step(session: oc.Session):
    import opdispatch as od

    sparse = od.Tensor(X, keys=od.DispatchKeySet(od.DispatchKey.SparseCPU))

    def record(p: oc.Program) -> None:
        p.ops.math.same(X)
        p.ops.math.same(sparse)

    with pytest.raises(oc.NoKernelError, match="step 1 of the program"):
        run(session, record)


def test_an_error_in_the_block_sends_nothing(session: oc.Session):
    before = sum(each.calls_total for each in session.interpreters())
    recorded = []

    def record(p: oc.Program) -> None:
        recorded.append(p)
        p.ops.math.add(X, X)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(session, record)
    with pytest.raises(oc.ArgumentError, match="has not run"):
        _ = recorded[0].result
    assert sum(each.calls_total for each in session.interpreters()) == before


def test_a_traced_function_is_sent_as_a_program(session: oc.Session):
    traced = []

    @session.as_program
    def norm(x, y, *, by="none", scale=1):
        """Add them up."""
        traced.append(by)
        value = session.ops.math.add(x, session.call("math::add", y, x))
        for _ in range(scale):
            value = session.ops.math.add(value, captured)
        return {"sum": value, "rest": [x, scale, None]}

    captured = session.put(np.ones(4))
    assert norm.__doc__ == "Add them up."
    x = session.put(X)
    for _ in range(3):
        result = norm(x, X)
        assert result["sum"].tolist() == (X * 3 + 1).tolist()
        assert result["rest"][0].tolist() == X.tolist()
        assert result["rest"][1:] == [1, None]
    assert norm(X, x)["sum"].tolist() == (X * 3 + 1).tolist()
    assert traced == ["none"]
    assert norm(x, y=x, scale=2)["sum"].tolist() == (X * 3 + 2).tolist()
    assert len(traced) == 2, "for other constants it is traced again"
    assert norm.__wrapped__(X, X)["sum"].tolist() == (X * 3 + 1).tolist()


def test_a_traced_function_may_keep_what_it_returns(session: oc.Session):
    @session.as_program(remote=True)
    def twice(x):
        return session.ops.math.add(x, x)

    y = twice(twice(session.put(X)))
    assert isinstance(y, oc.RemoteTensor)
    assert y.numpy().tolist() == (X * 4).tolist()


def test_programs_of_many_threads_run_side_by_side(session: oc.Session):
    @session.as_program
    def chain(x, y):
        for _ in range(50):
            x = session.ops.math.add(x, y)
        return x

    def call(number: int) -> bool:
        x = session.put(np.full(4, float(number)))
        return chain(x, np.ones(4)).tolist() == [number + 50.0] * 4

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(100)))


def send(daemon: RunningDaemon, request: execution_pb2.CallRequest) -> grpc.RpcError:
    """The error that the daemon answers with, to who checks nothing before."""
    target = daemon.address.replace("unix://", "unix:")
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(target, options=options) as channel:
        stub = execution_pb2_grpc.ExecutionServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Call(request)
    return caught.value


def test_a_cycle_an_unknown_input_and_garbage_are_refused(
    loaded: RunningDaemon, session: oc.Session
):
    cycle = remote_pb2.Program()
    for other in (1, 0):
        step = cycle.steps.add(operator="math::add")
        step.args.add().reference.step = other
    unknown = remote_pb2.Program()
    unknown.steps.add(operator="math::same").args.add().reference.input = 3
    for data, problem in (
        (cycle.SerializeToString(), "$.program.steps[0].args[0] refers to the result of step 1"),
        (unknown.SerializeToString(), "refers to input 3, and the program was given 0 inputs"),
        (b"\xff\xff", "$.program is not a serialized Program"),
    ):
        error = send(loaded, execution_pb2.CallRequest(program=data))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert problem in error.details()
    assert session.call("math::same", X).tolist() == X.tolist()


def test_a_million_steps_are_refused_quickly(loaded: RunningDaemon, session: oc.Session):
    step = remote_pb2.Program(steps=[remote_pb2.Step(operator="math::same")]).SerializeToString()
    request = execution_pb2.CallRequest(program=step * 1_000_000)
    yardstick = measure_work(lambda: remote_pb2.Program.FromString(request.program))
    before = cpu_seconds(loaded.process.pid)
    error = send(loaded, request)
    assert cpu_seconds(loaded.process.pid) - before < 10 * yardstick
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "more than 10000 steps; the limit is 10000" in error.details()
    assert session.check_invariants() == []


def test_a_kept_output_needs_a_session(loaded: RunningDaemon):
    program = remote_pb2.Program()
    program.outputs.add(keep=True).what.input = 0
    request = execution_pb2.CallRequest(program=program.SerializeToString())
    request.args.add().integer = 3
    assert "expected $.keep, which is absent" in send(loaded, request).details()


def test_recording_refuses_invalid_uses(session: oc.Session):
    with session.program() as p:
        x = p.ops.math.add(X, X)
        for spoil, problem in (
            (lambda: tuple(x), "cannot be unpacked"),
            (lambda: x["a"], "has no item 'a'"),
            (lambda: x[-1], "has no item -1"),
            (lambda: bool(x), "neither true nor false"),
            (lambda: p.output(3), "3 is not a value of this program"),
        ):
            with pytest.raises(oc.ArgumentError, match=problem):
                spoil()
        with pytest.raises(
            oc.WireError, match=r"\$\.program\.steps\[1\]\.args\[1\]: object cannot be sent"
        ):
            p.ops.math.add(x, object())
        assert repr(p) == "<Program of 1 call [recording]>"
        p.output(x)
    assert p.result.tolist() == (X * 2).tolist()
    with pytest.raises(TypeError, match="a placeholder of a program is an argument of"):
        session.submit("math::add", x, x).result(LONGEST_WAIT)
    with pytest.raises(oc.ArgumentError, match="has been sent already"):
        session.call("math::add", x, x)
    with session.program() as other, pytest.raises(oc.ArgumentError, match="of another program"):
        other.call("math::add", x, x)

    def too_much(p: oc.Program) -> None:
        for _ in range(10_001):
            p.ops.math.same(X)

    with pytest.raises(oc.ArgumentError, match="the limit is 10000"):
        run(session, too_much)
