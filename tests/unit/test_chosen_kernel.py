"""The kernel that a call names, in an interpreter that may not have heard of its operator yet."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    OperatorHandle,
    OperatorNotFoundError,
    Registration,
    parse_schema,
)
from opdispatch.functionalities.autograd import BELOW
from opdispatch_server.worker.libraries import chosen_kernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.errors import WireError
from opdispatch_wire.v1 import execution_pb2
from tests.waits import LONGEST_WAIT

SCHEMA = parse_schema("const::get(Tensor x) -> int")
X = np.zeros(2)


@pytest.fixture
def library() -> LoadedLibrary:
    """It has a kernel, and leaves the definition to others."""
    kernel = KernelFunction.from_unboxed(lambda x: 3)
    registration = Registration("impl", name=SCHEMA.name, key=DispatchKey.CPU, kernel=kernel)
    return LoadedLibrary(1, "over", [registration])


def naming_it() -> execution_pb2.CallRequest:
    request = execution_pb2.CallRequest(operator="const::get")
    request.kernel.load_id = 1
    return request


def test_a_definition_that_is_just_coming_is_waited_for(library: LoadedLibrary):
    dispatcher = Dispatcher()
    begins = threading.Event()

    def find() -> chosen_kernel.ChosenKernel:
        begins.set()
        return library.kernels.find(dispatcher, naming_it())

    with ThreadPoolExecutor(1) as pool:
        finding = pool.submit(find)
        assert begins.wait(LONGEST_WAIT)
        with pytest.raises(TimeoutError):
            finding.result(0.1)
        dispatcher.register_def(SCHEMA)
        assert finding.result(LONGEST_WAIT).call([X]) == [3]


def test_one_that_does_not_come_is_not_waited_for_for_long(
    library: LoadedLibrary, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chosen_kernel, "_NEWS_TAKE", 0.01)
    with pytest.raises(OperatorNotFoundError, match="const::get"):
        library.kernels.find(Dispatcher(), naming_it())


def test_a_slot_is_that_of_the_process_and_of_an_operator_of_the_library():
    dispatcher = Dispatcher()
    defined = Registration("def", schema=SCHEMA)
    owner = LoadedLibrary(1, "const", [defined])
    dispatcher.register(defined)
    dispatcher.register_impl(SCHEMA.name, DispatchKey.CPU, KernelFunction.from_unboxed(lambda x: 4))
    request = naming_it()
    request.kernel.in_slot = True
    request.kernel.dispatch_keys = DispatchKeySet.of(DispatchKey.CPU).bits
    assert owner.kernels.find(dispatcher, request).call([X]) == [4]
    request.operator = "const::other"
    with pytest.raises(WireError, match="does not define const::other"):
        owner.kernels.find(dispatcher, request)


def test_a_call_without_gradients_leaves_out_what_is_there_for_them():
    dispatcher = Dispatcher()
    schema = parse_schema("const::two(Tensor x, *, int n) -> (Tensor, int)")
    defined = Registration("def", schema=schema)
    owner = LoadedLibrary(1, "const", [defined])
    dispatcher.register(defined)
    dispatcher.register_impl(
        schema.name, DispatchKey.CPU, KernelFunction.from_unboxed(lambda x, *, n: (x, n))
    )
    entered: list[str] = []

    def record(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        entered.append("autograd")
        op.redispatch_boxed(BELOW[keys.bits], stack)

    kernel = KernelFunction.from_boxed(
        record, make_without_gradients=lambda op, keys: op.redispatch_function(BELOW[keys.bits])
    )
    dispatcher.register_impl(schema.name, DispatchKey.AutogradCPU, kernel)
    request = execution_pb2.CallRequest(operator="const::two")
    request.kernel.in_slot = True
    keys = DispatchKeySet.of(DispatchKey.CPU, DispatchKey.AutogradCPU)
    request.kernel.dispatch_keys = keys.bits
    found = owner.kernels.find(dispatcher, request)
    linked = found.without_gradients()
    assert found.call([X, 3]) == [X, 3]
    assert entered == ["autograd"]
    assert linked.call([X, 3]) == [X, 3]
    assert entered == ["autograd"]
    assert (linked.name, linked.key, linked.signature) == (found.name, found.key, found.signature)
    request.kernel.dispatch_keys = DispatchKeySet.of(DispatchKey.CPU).bits
    plain = owner.kernels.find(dispatcher, request)
    assert plain.without_gradients() is plain
