"""Planned calls run their kernel and reply as the general way does."""

import numpy as np
import pytest

from opdispatch.boxing.signature import Signature
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.schema.parser import parse_schema
from opdispatch_server.call_context import RUNNING_CALL, RunningCall
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_server.worker.execution.epoch_plans import EpochPlans
from opdispatch_server.worker.execution.kernel_plan import KernelPlan
from opdispatch_server.worker.execution.planned_kernels import PlannedKernels
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import KernelError
from opdispatch_wire.planned_requests import RequestForm
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.values import value_from_proto

LIMIT = 1 << 20
X = np.arange(4, dtype=np.float32)


class Library:
    """A library with one kernel, which can also be asked for all that an interpreter has."""

    max_concurrency, backends, dispatcher = 1, (), None

    def __init__(self, kernel):
        signature = Signature(parse_schema("planned::f(Tensor x) -> Tensor"))
        name = parse_operator_name("planned::f")
        self.choice = ChosenKernel(name, signature, lambda stack: [kernel(*stack)], "CPU")
        self.kernels = self

    def get(self, load_id):
        return self

    def find(self, dispatcher, request):
        return self.choice


class Side:
    """A kernel, and the requests of planned calls of it."""

    def __init__(self, kernel):
        self.kernels = PlannedKernels(Library(kernel), lambda: "here", LIMIT, ValueStore())
        self.plans = EpochPlans(ValueStore(), epoch=1)
        request = call_request("planned::f", (X,), {})
        request.route_epoch, request.kernel.load_id = 1, 3
        self.form = RequestForm.of(request, (X,))

    def run(self, x=X, limit=LIMIT):
        """Run a call; return what the plan's way returns."""
        payload = self.form.write([x], None, 5)
        if self.plans.find(payload) is None:
            request = execution_pb2.CallRequest.FromString(payload)
            self.kernels.add(self.plans, payload, request)
        plan, received = self.plans.find(payload)
        token = RUNNING_CALL.set(RunningCall())
        try:
            return self.kernels.run(plan, received, payload, limit, None, None)
        finally:
            RUNNING_CALL.reset(token)


def result_of(reply):
    message = execution_pb2.CallReply.FromString(reply) if isinstance(reply, bytes) else reply
    assert message.id == 5
    return value_from_proto(message.returns[0]).tolist()


def test_results_of_one_form_and_of_others_are_replied():
    side = Side(lambda x: x[: int(x[0])] + 1)
    for n in (2, 2, 3, 2, 4):
        reply, memory = side.run(X + n)
        assert isinstance(reply, bytes)
        assert memory is None
        assert result_of(reply) == (X + n + 1)[:n].tolist()


def test_a_reply_that_is_too_long_to_be_plain_has_its_tensors_beside_it():
    side = Side(lambda x: np.zeros(1 << 17, np.float32))
    reply, tensors = side.run()
    assert isinstance(reply, execution_pb2.CallReply)
    assert sum(len(each) for each in tensors.results) == 1 << 19
    reply, tensors = Side(lambda x: np.zeros(1 << 10, np.float32)).run(limit=1 << 10)
    assert isinstance(reply, execution_pb2.CallReply)
    assert not tensors.results
    assert len(result_of(reply)) == 1 << 10


def test_an_error_of_the_kernel_is_raised_and_what_it_set_is_not():
    state = LOCAL_STATE.get()

    def kernel(x):
        LOCAL_STATE.set(None)
        raise ValueError("no")

    side = Side(kernel)
    with pytest.raises(KernelError, match="no"):
        side.run()
    assert LOCAL_STATE.get() is state


def test_a_plan_belongs_to_the_epoch_of_its_set():
    side = Side(lambda x: x)
    payload = side.form.write([X], None, 5)
    request = execution_pb2.CallRequest.FromString(payload)
    request.route_epoch = 2
    side.kernels.add(side.plans, payload, request)
    assert side.plans.find(payload) is None
    request.route_epoch = 1
    side.kernels.add(side.plans, payload, request)
    plan, _ = side.plans.find(payload)
    assert isinstance(plan, KernelPlan)
    assert plan.epoch == 1
