"""The message that an interpreter sends again and again: that it lives, and its counters."""

from __future__ import annotations

from opdispatch.arrays import device_transfers
from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.worker.direct_calls import DirectCalls
from opdispatch_wire.v1 import interpreter_pb2, registry_pb2


def heartbeat_of(calls: DirectCalls, fitness: Fitness) -> interpreter_pb2.Heartbeat:
    """As of now."""
    return interpreter_pb2.Heartbeat(
        problem=fitness.problem,
        suspect=fitness.suspect,
        direct_calls_in_flight=calls.in_flight,
        direct_calls_total=calls.total,
        transfers=[
            registry_pb2.DeviceTransfers(
                device=device,
                to_device=each.to_device,
                from_device=each.from_device,
                from_peers=each.from_peers,
            )
            for device, each in device_transfers().items()
        ],
    )
