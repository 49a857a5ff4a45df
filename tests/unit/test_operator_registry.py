"""The daemon's operators: what is over goes at once, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from opdispatch import DispatchKey, DispatchKeySet, OperatorName
from opdispatch.errors import InternalError
from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.libraries.kernel_route import KernelRoute
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.registration_codec import batch_from_proto
from opdispatch_wire.v1 import interpreter_pb2 as pb

NAME = OperatorName.parse("t::f")
CPU = DispatchKeySet(DispatchKey.CPU)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def version_of(number: int, schema: str) -> LibraryVersion:
    version = LibraryVersion("t", number, number, LibrarySource("t.py", f"{number}"))
    kernel = pb.ImplementationRegistration(operator="t::f", key="CPU")
    batch = pb.RegistrationBatch(
        registrations=[
            pb.Registration(definition=pb.DefinitionRegistration(schema=schema)),
            pb.Registration(implementation=kernel),
        ]
    )
    version.take_batch(batch, batch_from_proto(batch, KernelRoute.kernel))
    return version


def publish(
    operators: OperatorRegistry, version: LibraryVersion, replaced: LibraryVersion | None = None
) -> None:
    operators.own(version)
    [version.handles] = operators.publish(
        version.registrations, replaced.handles if replaced is not None else ()
    )
    if replaced is not None:
        operators.disown(replaced)


def watch(operators: OperatorRegistry, version: LibraryVersion) -> list[weakref.ref[object]]:
    """Return references to all of a version, after calls have looked at it."""
    op = operators.dispatcher.get_schema(NAME)
    resolution = op.lookup(CPU)
    assert operators.find_kernel(resolution.registration) == (version, 1)
    assert operators.find_owner(op.definition) is version
    route = resolution.kernel.function
    return [weakref.ref(each) for each in (version, route, op)]


def alive(watched: list[weakref.ref[object]]) -> list[object]:
    return [found for each in watched if (found := each()) is not None]


@pytest.mark.parametrize(
    "schema",
    ["t::f(Tensor x) -> Tensor", "t::f(Tensor x, int n=1) -> Tensor"],
    ids=["the same schema", "another schema"],
)
def test_a_version_that_is_superseded_goes_at_once(schema: str):
    operators = OperatorRegistry()
    old = version_of(1, "t::f(Tensor x) -> Tensor")
    publish(operators, old)
    watched = watch(operators, old)[:2]
    new = version_of(2, schema)
    publish(operators, new, old)
    del old
    assert alive(watched) == []
    watch(operators, new)


def test_a_version_that_is_unloaded_goes_at_once():
    operators = OperatorRegistry()
    version = version_of(1, "t::f(Tensor x) -> Tensor")
    publish(operators, version)
    watched = watch(operators, version)
    operators.publish((), version.handles)
    operators.disown(version)
    del version
    assert alive(watched) == []
    assert operators.dispatcher.operators() == []


def test_a_handle_that_is_held_outlives_its_version():
    operators = OperatorRegistry()
    version = version_of(1, "t::f(Tensor x) -> Tensor")
    publish(operators, version)
    op = operators.dispatcher.get_schema(NAME)
    operators.publish((), version.handles)
    operators.disown(version)
    watched = [weakref.ref(version)]
    del version
    assert alive(watched) == []
    publish(operators, again := version_of(2, "t::f(Tensor x) -> Tensor"))
    assert op.lookup(CPU).registration is again.registrations[1]


def test_a_kernel_of_no_version_is_a_mistake():
    operators = OperatorRegistry()
    version = version_of(1, "t::f(Tensor x) -> Tensor")
    with pytest.raises(InternalError, match="is of no library"):
        operators.find_kernel(version.registrations[1])
