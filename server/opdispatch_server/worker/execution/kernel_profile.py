"""The profile of one call in an interpreter: its kernel, and that kernel's calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch import DispatchKeySet
from opdispatch.boxing.signature import Signature
from opdispatch.local_state.trace_line import TraceSink
from opdispatch.profiler.recorder import Place, Recorder, this_process
from opdispatch_wire.profiles import MAX_BYTES, MAX_EVENTS, profile_to_proto
from opdispatch_wire.v1 import execution_pb2

# The share of the message limit that a profile may take: results come first.
_SHARE = 4


class KernelProfile:
    """The profile of a call that asks for one."""

    def __init__(self, request: execution_pb2.CallRequest) -> None:
        asked = request.profile
        most = min(asked.max_events or MAX_EVENTS, MAX_EVENTS)
        self._recorder = Recorder(
            record_shapes=asked.record_shapes,
            with_flops=asked.with_flops,
            record_keys=asked.record_keys,
            profile_memory=asked.profile_memory,
            max_events=most,
        )
        self._place = Place(self._recorder)
        self.has_begun = False
        """Whether there is anything to report."""

    def begin_kernel(
        self,
        request: execution_pb2.CallRequest,
        operator: str,
        signature: Signature,
        arguments: Sequence[Any],
    ) -> None:
        """Begin the kernel of the call."""
        name = operator.partition(".")[0]
        self.has_begun = True
        self._place = self._place.begin_operator(name, signature, arguments) or self._place
        bits = request.kernel.dispatch_keys or request.redispatch_keys
        if self._recorder.record_keys:
            key = DispatchKeySet.from_raw_repr(bits).highest_priority_key
            self._recorder.visit(operator, str(key))

    def begin_program(self, what: str) -> None:
        """Begin the steps of a program."""
        self.has_begun = True
        self._place = self._place.begin_range(what, "user")

    @property
    def observer(self) -> Place:
        """The observer of the kernel's calls."""
        return self._place

    def sink(self) -> TraceSink | None:
        """Return the sink that counts the keys that these calls visit."""
        return self._recorder.sink(None) if self._recorder.record_keys else None

    def end(self, result: Any = None, *, failed: bool = False) -> None:
        """End the kernel, which has returned or raised."""
        self._place.end(result, failed=failed)
        self._recorder.stop()

    def add_to(self, reply: execution_pb2.CallReply, interpreter: str, message_limit: int) -> None:
        """Add the profile to the reply."""
        most = min(MAX_BYTES, message_limit // _SHARE)
        profile = profile_to_proto(self._recorder, this_process(interpreter), most)
        reply.profile.CopyFrom(profile)
