"""A registration is a record; its handle undoes exactly that one."""

import gc
import threading
import time
import weakref

import pytest

from opdispatch import (
    Dispatcher,
    DispatchKey,
    KernelFunction,
    Library,
    OperatorName,
    Registration,
    parse_schema,
)
from tests.waits import LONGEST_WAIT

SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
NAME = SCHEMA.name
KERNEL = KernelFunction.from_unboxed(lambda x: x)


def test_a_registration_says_what_it_is():
    assert str(Registration("library", namespace="t")) == "library t (DEF)"
    assert str(Registration("def", schema=SCHEMA)) == "def t::f(Tensor x) -> Tensor"
    impl = Registration("impl", name=NAME, key=DispatchKey.CPU, kernel=KERNEL)
    assert str(impl) == "impl t::f for CPU"
    assert str(Registration("fallback", key=DispatchKey.CPU)) == "fallback for CPU"


def test_a_registration_says_where_it_was_made():
    assert Registration("def", "lib.py:3", schema=SCHEMA).debug == "registered at lib.py:3"
    assert Registration("def", schema=SCHEMA).debug == "registered from Python"


def test_two_equal_registrations_are_two():
    assert Registration("def", schema=SCHEMA) != Registration("def", schema=SCHEMA)


def test_a_handle_undoes_its_registration_once(dispatcher):
    dispatcher.register_def(SCHEMA)
    older = dispatcher.register_impl(NAME, DispatchKey.CPU, KERNEL)
    newer = dispatcher.register_impl(NAME, DispatchKey.CPU, KERNEL)
    newer.close()
    newer.close()
    [kernel] = dispatcher.list_kernels(NAME)
    assert kernel.registration is older.registration


def test_a_handle_is_a_context_manager(dispatcher):
    with dispatcher.register_def(SCHEMA) as handle:
        assert handle.live
        assert dispatcher.find_schema(NAME) is not None
    assert not handle.live
    assert dispatcher.operators() == []


def test_leaving_its_block_with_an_exception_undoes_as_well(dispatcher):
    with pytest.raises(KeyError), dispatcher.register_def(SCHEMA):
        raise KeyError
    assert dispatcher.operators() == []


def test_a_handle_says_whether_it_is_live(dispatcher):
    handle = dispatcher.register_impl(NAME, DispatchKey.CPU, KERNEL)
    assert repr(handle) == "<RegistrationHandle impl t::f for CPU [live]>"
    handle.close()
    assert repr(handle) == "<RegistrationHandle impl t::f for CPU [undone]>"


def test_a_forgotten_handle_undoes_nothing(dispatcher):
    dispatcher.register_def(SCHEMA)
    gc.collect()
    assert dispatcher.operators() == [NAME]


def test_closing_is_safe_when_the_dispatcher_is_gone():
    dispatcher = Dispatcher()
    handles = [dispatcher.register_def(SCHEMA), dispatcher.register_library("t")]
    gone = weakref.ref(dispatcher)
    del dispatcher
    gc.collect()
    assert gone() is None, "handles do not keep their dispatcher"
    for handle in handles:
        handle.close()
        handle.close()


def test_many_threads_may_close_one_handle(dispatcher):
    handles = [dispatcher.register_impl(NAME, DispatchKey.CPU, KERNEL) for _ in range(20)]
    start = threading.Barrier(4)

    def close_all():
        start.wait(LONGEST_WAIT)
        for handle in handles:
            handle.close()

    threads = [threading.Thread(target=close_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_WAIT)
    assert dispatcher.operators() == []


def test_a_handle_may_be_closed_by_a_finalizer_while_the_registry_is_changed(dispatcher):
    """The collector may run at any point of a registration, in the thread that registers."""
    for place in range(50):
        cycle = type("Owner", (), {"__del__": lambda self: self.handle.close()})()
        cycle.itself = cycle
        cycle.handle = dispatcher.register_impl(OperatorName(f"t::g{place}"), None, KERNEL)
    del cycle
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(20):
            dispatcher.register_def(SCHEMA).close()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert dispatcher.operators() == []


def test_a_registration_may_be_applied_again_after_it_was_undone(dispatcher):
    for handle in (
        dispatcher.register_library("t"),
        dispatcher.register_def(SCHEMA, site="a.py:1", tags=["pointwise"]),
        dispatcher.register_impl(NAME, DispatchKey.CPU, KERNEL),
        dispatcher.register_fallback(DispatchKey.Fake, KERNEL),
    ):
        handle.close()
        again = dispatcher.register(handle.registration)
        assert again.registration is handle.registration
        handle.close()  # undone before: it does not undo the second
        assert again.live
    op = dispatcher.get_schema(NAME)
    assert (op.defined_at, op.tags) == ("a.py:1", ["pointwise"])
    assert op.has_kernel_for_dispatch_key(DispatchKey.CPU)
    assert dispatcher.libraries()["t"].namespace == "t"
    assert dispatcher.fallbacks()[DispatchKey.Fake].kernel is KERNEL


@pytest.mark.parametrize("what", ["a kernel", "a library"])
def test_a_finalizer_in_the_middle_of_a_look_up_waits_for_no_writer(dispatcher, what):
    """A waiter for the look-up's end. What it closes is undone when the writer is done."""
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("f(Tensor x) -> Tensor")
    kernel = library.impl("f", lambda x: x, "CPU")
    other = Library("u", "DEF", dispatcher=dispatcher)
    looks = threading.Event()
    registry = dispatcher._registry

    def look(names):
        looks.set()
        while registry.mutex.acquire(blocking=False):  # until the writer has it
            registry.mutex.release()
            time.sleep(0)
        (kernel if what == "a kernel" else library).close()

    def write():
        looks.wait(LONGEST_WAIT)
        other.define("f(Tensor x) -> Tensor")

    reader = threading.Thread(target=registry.names.read, args=[look], daemon=True)
    writer = threading.Thread(target=write, daemon=True)
    for thread in (reader, writer):
        thread.start()
    for thread in (reader, writer):
        thread.join(LONGEST_WAIT)
        assert not thread.is_alive()
    left = {str(name): len(dispatcher.list_kernels(name)) for name in dispatcher.operators()}
    assert left == ({"t::f": 0, "u::f": 0} if what == "a kernel" else {"u::f": 0})
    assert dispatcher.check_invariants() == []
