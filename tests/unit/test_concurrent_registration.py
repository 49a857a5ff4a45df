"""Calls while others register and undo: none fails, waits, or sees half of a change.

Every story has writers, which do a fixed number of rounds, and readers, which go on until the
writers are done. Threads take turns as often as they can.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    OperatorNotFoundError,
    Tensor,
    parse_schema,
)
from opdispatch.library.ops import Ops
from tests.unit.plain_kernels import returning
from tests.waits import LONGEST_WAIT

K = DispatchKey
X = np.ones(2)
CPU = DispatchKeySet.of(K.CPU)
ROUNDS = 150

pytestmark = pytest.mark.usefixtures("caller", "eager_switching")


def race(writers, readers):
    """Run each writer once, and each reader again and again until all writers are done."""
    start, done = threading.Barrier(len(writers) + len(readers)), threading.Event()

    def write(writer):
        start.wait(LONGEST_WAIT)
        writer()

    def read(reader):
        start.wait(LONGEST_WAIT)
        reader()
        while not done.is_set():
            reader()

    with ThreadPoolExecutor(len(writers) + len(readers)) as pool:
        reading = [pool.submit(read, reader) for reader in readers]
        writing = [pool.submit(write, writer) for writer in writers]
        try:
            for future in writing:
                future.result(60)
        finally:
            done.set()
        for future in reading:
            future.result(60)


@pytest.fixture
def op(dispatcher):
    """An operator with a CPU kernel that returns 0."""
    schema = parse_schema("t::f(Tensor x) -> int")
    dispatcher.register_def(schema)
    dispatcher.register_impl(schema.name, K.CPU, returning(0))
    return dispatcher.get_schema(schema.name)


def replacing(dispatcher, load, loaded):
    """A writer that puts one version after the other in the place of what is ``loaded``."""

    def write():
        handles = loaded
        for version in range(1, ROUNDS):
            with dispatcher.transaction():
                for handle in handles:
                    handle.close()
                handles = load(version)

    return write


def boxed(op):
    stack = [X]
    op.call_boxed(stack)
    return stack[0]


@pytest.mark.parametrize("seed", range(3))
def test_calls_succeed_while_kernels_are_covered_and_uncovered(dispatcher, op, seed):
    """Two writers cover the kernel by kernels of their own, and undo them in any order."""

    def write(writer):
        rng, handles = Random(f"{seed}-{writer}"), []
        for _ in range(ROUNDS):
            if handles and rng.random() < 0.5:
                handles.pop(rng.randrange(len(handles))).close()
            else:
                key = rng.choice([K.CPU, K.CompositeExplicitAutograd, K.AutogradCPU])
                kernel = returning(writer)
                if rng.random() < 0.3 and key is not K.CPU:
                    kernel = KernelFunction.fallthrough()
                handles.append(dispatcher.register_impl(op.name, key, kernel))
        for handle in handles:
            handle.close()

    tensor = Tensor(X)

    def read():
        results = op(X), op(tensor), op.redispatch(CPU, X), boxed(op)
        assert set(results) <= {0, 1, 2}

    race([lambda: write(1), lambda: write(2)], [read, read])
    assert [kernel.key for kernel in op.kernels()] == [K.CPU]
    assert op(X) == 0


def test_a_caller_never_sees_an_older_kernel_again(dispatcher, op):
    """A replacement is one transaction: no call finds none, or the one before."""

    def write():
        handle = dispatcher.register_impl(op.name, K.CPU, returning(0))
        for version in range(1, ROUNDS):
            with dispatcher.transaction():
                handle.close()
                handle = dispatcher.register_impl(op.name, K.CPU, returning(version))

    def reader(call):
        last = 0

        def read():
            nonlocal last
            version = call()
            assert version >= last
            last = version

        return read

    race([write], [reader(lambda: op(X)), reader(lambda: boxed(op))])
    assert op(X) == ROUNDS - 1


def test_a_transaction_is_seen_whole_whichever_operators_one_looks_at(dispatcher):
    """A reader that has seen one operator of it changed sees all of them so: also those that come
    and go, those with another schema, and a fallback."""
    schemas = [parse_schema(f"t::f{number}(Tensor x) -> int") for number in range(60)]
    fickle = [parse_schema(f"t::g(Tensor x{more}) -> int") for more in ("", ", int y=1")]
    tracked = parse_schema("t::h(Tensor x) -> int")
    dispatcher.register_def(tracked)

    def load(version):
        loaded = [dispatcher.register_fallback(K.Fake, returning(version))]
        for schema in (*schemas[:30], fickle[version % 2], *schemas[30:]):
            loaded.append(dispatcher.register_def(schema))
            loaded.append(dispatcher.register_impl(schema.name, K.CPU, returning(version)))
        comes = parse_schema(f"t::only{version}(Tensor x) -> int")
        loaded.append(dispatcher.register_def(comes))
        return loaded

    loaded = load(0)
    ops = [dispatcher.get_schema(schema.name) for schema in schemas]
    changing, fallen = dispatcher.get_schema("t::g"), dispatcher.get_schema("t::h")
    fake = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Fake))

    def newest():
        return max(
            int(str(n)[len("t::only") :]) for n in dispatcher.operators() if "only" in str(n)
        )

    looks = [
        lambda: ops[0](X),
        lambda: ops[59](X),
        lambda: ops[30].redispatch(CPU, X),
        lambda: boxed(ops[29]),
        lambda: changing(X),
        lambda: fallen(fake),
        newest,
    ]
    # Each reader goes on at a place of its own, so that every two are seen in both orders.
    places = [0, 4]

    def reader(number):
        last = 0

        def read():
            nonlocal last
            for _ in looks:
                places[number] += 3 + number
                version = looks[places[number] % len(looks)]()
                assert version >= last, (places[number] % len(looks), version, last)
                last = version

        return read

    race([replacing(dispatcher, load, loaded)], [reader(0), reader(1)])
    assert {look() for look in looks} == {ROUNDS - 1}


def test_a_table_is_seen_whole(dispatcher, op):
    keys = (K.CUDA, K.SparseCPU, K.Autograd, K.PrivateUse1)

    def write():
        handles = []
        for version in range(ROUNDS):
            with dispatcher.transaction():
                for handle in handles:
                    handle.close()
                handles = [
                    dispatcher.register_impl(op.name, key, returning(1), site=f"v{version}")
                    for key in keys
                ]

    def read():
        rows = {row.key: row.registered_at for row in op.table_rows()}
        seen = [rows.get(key) for key in (K.CUDA, K.SparseCPU, K.AutogradHIP, K.PrivateUse1)]
        assert len(set(seen)) == 1, seen

    race([write], [read])


def test_operators_of_one_transaction_are_found_together(dispatcher):
    schemas = [parse_schema(f"t::{name}() -> ()") for name in "abc"]

    def write():
        for _ in range(ROUNDS):
            with dispatcher.transaction():
                handles = [dispatcher.register_def(schema) for schema in schemas]
            with dispatcher.transaction():
                for handle in reversed(handles):
                    handle.close()

    def read():
        assert len(dispatcher.operators()) in (0, 3)

    race([write], [read, read])
    assert dispatcher.operators() == []


def test_a_handle_serves_every_schema_its_name_gets(dispatcher):
    """The schema changes under the caller: each call is wholly of the old or of the new one."""
    versions = [
        (parse_schema("t::f(Tensor x) -> int"), 1),
        (parse_schema("t::f(Tensor x, int n=2) -> (int, int)"), (2, 2)),
        (parse_schema("t::f(Tensor x, *, str mode='a') -> int[]"), [3]),
    ]

    def load(version):
        schema, result = versions[version % 3]
        return [
            dispatcher.register_def(schema),
            dispatcher.register_impl(schema.name, K.CPU, returning(result)),
        ]

    loaded = load(0)
    op, ops = dispatcher.get_schema("t::f"), Ops(dispatcher)

    def read():
        for call in (op, lambda x: op.redispatch(CPU, x), ops.t.f):
            assert call(X) in (1, (2, 2), [3])

    race([replacing(dispatcher, load, loaded)], [read, read])


def test_an_operator_that_comes_and_goes_is_called_or_not_found(dispatcher):
    """Handles, packets and look-ups by name: nothing dangles, and no other error comes up."""
    schemas = [
        parse_schema("t::f(Tensor x) -> int"),
        parse_schema("t::f(Tensor x, int n=1) -> int"),
    ]

    def load(version):
        schema = schemas[version % 2]
        return [
            dispatcher.register_def(schema),
            dispatcher.register_impl(schema.name, K.CPU, returning(version)),
        ]

    first = load(0)
    op, ops = dispatcher.get_schema("t::f"), Ops(dispatcher)
    packet = ops.t.f
    for handle in first:
        handle.close()

    def write():
        for version in range(ROUNDS):
            with dispatcher.transaction():
                handles = load(version)
            with dispatcher.transaction():
                for handle in reversed(handles):
                    handle.close()

    def read():
        for call in (
            op,
            packet,
            lambda x: ops.t.f(x),
            lambda x: dispatcher.get_schema("t::f")(x),
        ):
            with suppress(OperatorNotFoundError):
                assert call(X) in range(ROUNDS)

    race([write], [read, read])


def test_a_packet_serves_one_overload_while_another_comes_and_goes(dispatcher):
    ops = Ops(dispatcher)
    one, two = parse_schema("t::f(Tensor x) -> int"), parse_schema("t::f.two(Tensor x) -> int")
    dispatcher.register_def(one)
    dispatcher.register_impl(one.name, K.CPU, returning(1))
    dispatcher.register_impl(two.name, K.CPU, returning(2))

    def write():
        for _ in range(ROUNDS):
            dispatcher.register_def(two).close()

    def read():
        assert ops.t.f(X) == 1
        assert ops.t.f.default(X) == 1

    race([write, write_other(dispatcher)], [read, read])


def write_other(dispatcher):
    """A writer of operators that no other thread uses."""

    def write():
        for number in range(ROUNDS):
            schema = parse_schema(f"other::g{number % 5}() -> ()")
            with dispatcher.transaction():
                dispatcher.register_def(schema).close()
                handle = dispatcher.register_impl(schema.name, None, returning(None))
            handle.close()

    return write


def test_fallbacks_come_and_go_under_calls(dispatcher, op):
    x = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Tracer))
    dispatcher.register_impl(op.name, K.Tracer, KernelFunction.fallthrough())

    def write():
        for number in range(ROUNDS // 2):
            kernel = returning(number) if number % 2 else KernelFunction.fallthrough()
            dispatcher.register_fallback(K.Fake, kernel).close()

    python = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Fake))
    dispatcher.register_impl(op.name, K.Fake, returning(-1))

    def read():
        assert op(x) == 0
        assert op(python) == -1

    race([write], [read, read])


def test_invariants_hold_at_every_moment(dispatcher, op):
    def write():
        for number in range(ROUNDS // 3):
            key = (K.CPU, K.CUDA, K.Autograd)[number % 3]
            with dispatcher.register_impl(op.name, key, returning(1)):
                op(X)

    def read():
        assert dispatcher.check_invariants() == []

    race([write, write, write_other(dispatcher)], [read])
