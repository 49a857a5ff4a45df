"""Calls that the daemon passes on without a look at their arguments: which ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opdispatch import DispatchKey, KernelFunction, Registration, parse_schema
from opdispatch_server.daemon.calls.kernel_choice import CallChooser
from opdispatch_server.daemon.calls.relay_plan import RelayPlans
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_wire.calls import call_request
from opdispatch_wire.planned_requests import RequestForm
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.variable_parts import take_value

# What a plan needs to know of a version.
VERSION = cast(LibraryVersion, SimpleNamespace(load_id=3, max_concurrency=1))


def registry_of(*schemas: str) -> OperatorRegistry:
    operators = OperatorRegistry()
    for text in schemas:
        schema = parse_schema(text)
        kernel = KernelFunction.from_boxed(lambda op, keys, stack: None)
        key = DispatchKey.CompositeExplicitAutograd
        definition = Registration("def", schema=schema)
        operators.publish((definition,), ())
        operators.publish((Registration("impl", name=schema.name, key=key, kernel=kernel),), ())
    return operators


def payload_of(operator: str, *args: Any) -> bytes:
    form = RequestForm.of(call_request(operator, args, {}), args)
    assert form is not None
    leaves: list[Any] = []
    assert take_value(args, [], leaves)
    return form.write(leaves, None, 7)


@pytest.mark.parametrize(
    ("schemas", "is_planned"),
    [
        (["t::f(float x, str how) -> float"], True),
        (["t::f(float x, Device how) -> float"], False),
        (["t::f(float x, Device? how=None) -> float"], False),
        (
            ["t::f(float x, str how) -> float", "t::f.other(float x, ScalarType how) -> float"],
            False,
        ),
    ],
)
def test_a_call_whose_text_may_choose_its_kernel_is_looked_at_each_time(
    schemas: list[str], is_planned: bool
):
    operators = registry_of(*schemas)
    plans, payload = RelayPlans(operators), payload_of("t::f", 1.0, "cuda:0")
    request = execution_pb2.CallRequest.FromString(payload)
    choice = asyncio.run(CallChooser(operators).choose(request))
    plans.add(payload, request, choice, VERSION, 1, operators.dispatcher.epoch)
    assert (plans.find(payload_of("t::f", 2.0, "cuda:1")) is not None) == is_planned


def test_a_plan_holds_until_something_is_published():
    operators = registry_of("t::f(float x) -> float")
    plans, payload = RelayPlans(operators), payload_of("t::f", 1.0)
    request = execution_pb2.CallRequest.FromString(payload)
    choice = asyncio.run(CallChooser(operators).choose(request))
    plans.add(payload, request, choice, VERSION, 1, operators.dispatcher.epoch)
    found = plans.find(payload_of("t::f", 2.0))
    assert found is not None
    assert found[1:] == (7, None)
    operators.publish((Registration("def", schema=parse_schema("t::g() -> ()")),), ())
    assert plans.find(payload) is None


def test_plan_of_a_choice_that_a_publication_has_overtaken_is_never_used():
    operators = registry_of("t::f(float x) -> float")
    plans, payload = RelayPlans(operators), payload_of("t::f", 1.0)
    request = execution_pb2.CallRequest.FromString(payload)
    epoch = operators.dispatcher.epoch
    choice = asyncio.run(CallChooser(operators).choose(request))
    # As in the thread that publishes, while the event loop is about to forward the call.
    operators.publish((Registration("def", schema=parse_schema("t::g() -> ()")),), ())
    plans.add(payload, request, choice, VERSION, 1, epoch)
    assert plans.find(payload) is None
