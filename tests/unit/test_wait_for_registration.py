"""Waiting for what another thread registers: woken by it, or an error that says who is missing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from opdispatch import (
    DispatchKey,
    KernelFunction,
    RegistrationError,
    WaitTimeoutError,
    parse_schema,
)
from opdispatch.dispatch.wait_for_registration import wait_until
from tests.waits import LONGEST_WAIT

K = DispatchKey
SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
NAME = SCHEMA.name
KERNEL = KernelFunction.from_unboxed(lambda x: x)


class Waiters:
    """A dispatcher's condition, which tells when threads have begun to wait for it."""

    def __init__(self, dispatcher):
        self.condition = dispatcher._registry.changed
        self.mutex = dispatcher._registry.mutex

    def until(self, count):
        """Return when so many threads wait."""
        for _ in range(1_000_000):
            with self.mutex:
                if len(self.condition._waiters) == count:
                    return
        raise AssertionError("no thread waits")


@pytest.fixture
def waiters(dispatcher):
    return Waiters(dispatcher)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


def test_wait_returns_at_once_for_registered_operator(dispatcher):
    dispatcher.register_def(SCHEMA)
    dispatcher.register_impl(NAME, K.CPU, KERNEL)
    assert dispatcher.wait_for_def(NAME, timeout=0).name == NAME
    assert dispatcher.wait_for_def("t::f", timeout=0).name == NAME
    dispatcher.wait_for_impl("t::f", K.CPU, timeout=0)


def test_definition_wakes_every_waiter(dispatcher, pool, waiters):
    waiting = [pool.submit(dispatcher.wait_for_def, NAME, 30) for _ in range(3)]
    waiters.until(3)
    dispatcher.register_def(SCHEMA)
    assert [future.result(LONGEST_WAIT).schema for future in waiting] == [SCHEMA] * 3


def test_a_kernel_alone_is_no_definition(dispatcher, pool, waiters):
    waiting = pool.submit(dispatcher.wait_for_def, NAME, 30)
    waiters.until(1)
    dispatcher.register_impl(NAME, K.CPU, KERNEL)
    waiters.until(1)
    assert not waiting.done()
    dispatcher.register_def(SCHEMA)
    assert waiting.result(LONGEST_WAIT).name == NAME


def test_kernel_wakes_only_waiters_for_its_key(dispatcher, pool, waiters):
    cpu = pool.submit(dispatcher.wait_for_impl, NAME, K.CPU, 30)
    cuda = pool.submit(dispatcher.wait_for_impl, NAME, K.CUDA, 30)
    waiters.until(2)
    dispatcher.register_impl(NAME, K.CPU, KERNEL)
    cpu.result(LONGEST_WAIT)
    assert not cuda.done()
    dispatcher.register_impl(NAME, K.CUDA, KERNEL)
    cuda.result(LONGEST_WAIT)


@pytest.mark.parametrize("key", [None, K.Undefined, K.CompositeImplicitAutograd])
def test_without_a_key_the_composite_kernel_is_meant(dispatcher, pool, waiters, key):
    waiting = pool.submit(dispatcher.wait_for_impl, NAME, key, 30)
    waiters.until(1)
    dispatcher.register_impl(NAME, None, KERNEL)
    waiting.result(LONGEST_WAIT)


def test_waiters_sleep_until_a_transaction_is_over(dispatcher, pool, waiters):
    waiting = pool.submit(dispatcher.wait_for_def, NAME, 30)
    waiters.until(1)
    with dispatcher.transaction():
        dispatcher.register_def(SCHEMA)
        dispatcher.register_impl(NAME, K.CPU, KERNEL)
        assert len(waiters.condition._waiters) == 1
    op = waiting.result(LONGEST_WAIT)
    assert op.has_kernel_for_dispatch_key(K.CPU), "both are there when the waiter wakes"


def test_a_timeout_says_what_was_awaited_from_whom_and_for_how_long(dispatcher):
    with pytest.raises(WaitTimeoutError) as caught:
        dispatcher.wait_for_def("t::f", timeout=0.01, awaited_from="interpreter w2")
    assert str(caught.value) == (
        "waited 0.01 s for the definition of t::f, which interpreter w2 was expected to register "
        "(is it still loading, or did it fail?)"
    )
    assert caught.value.facts == {
        "awaited": "the definition of t::f",
        "awaited_from": "interpreter w2",
    }


def test_a_timeout_without_a_name_blames_another_interpreter(dispatcher):
    text = "waited 0 s for a CUDA kernel of t::f, which another interpreter was expected"
    with pytest.raises(WaitTimeoutError, match=text):
        dispatcher.wait_for_impl(NAME, K.CUDA, timeout=0)


def test_waiting_within_a_transaction_is_refused(dispatcher):
    with dispatcher.transaction(), pytest.raises(RegistrationError, match="within a transaction"):
        dispatcher.wait_for_def(NAME, timeout=30)


def test_waiting_ends_as_soon_as_the_condition_holds():
    changed = threading.Condition()
    wait_until(changed, lambda: [1], 0, "it", "")
    with pytest.raises(WaitTimeoutError, match="waited 0 s for it"):
        wait_until(changed, list, 0, "it", "")
