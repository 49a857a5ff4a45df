"""A call on a lane, as the turns of its library see it."""

from opdispatch_server.call_context import CallContext
from opdispatch_server.worker.incoming.lane_call import LaneCall
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.v1 import execution_pb2


class Lane:
    """Notes what it is asked to do."""

    def __init__(self):
        self.asked = []

    def start_call(self, call, turns):
        self.asked.append((call, turns))

    def refuse_call(self, call, error):
        self.asked.append((call, error))


def test_a_call_is_started_and_refused_by_its_lane():
    lane, turns, error = Lane(), object(), RefusedError("no")
    request = execution_pb2.CallRequest(id=1, operator="a::b")
    call = LaneCall(lane, request, CallContext(), CalleeTensors([], 300))
    assert (call.source, call.operator, call.size) == (lane, "a::b", 300)
    assert not call.waits_since
    assert not call.is_cancelled
    call.start(turns)
    call.refuse(error)
    assert lane.asked == [(call, turns), (call, error)]
