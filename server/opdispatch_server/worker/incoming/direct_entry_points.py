"""The entry points for clients' direct calls: a local lane, TCP ports, and their tickets."""

from __future__ import annotations

from collections.abc import Iterable

from opdispatch_server.access.route_tickets import TicketAuthentication
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.direct_calls import DirectCalls
from opdispatch_server.worker.incoming.direct_listener import DirectListener
from opdispatch_server.worker.incoming.kernel_lanes import KernelLanes
from opdispatch_server.worker.incoming.kernel_streams import KernelStreams
from opdispatch_server.worker.incoming.kernel_threads import KernelThreads
from opdispatch_wire.credentials import Credentials
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.v1 import interpreter_pb2 as pb


class DirectEntryPoints:
    """Where clients call an interpreter, from the daemon's rules on. Belongs to the event loop.

    They stay open when the daemon vanishes.
    """

    def __init__(
        self,
        execution: KernelExecution,
        calls: DirectCalls,
        max_message_bytes: int,
        credentials: Credentials,
    ) -> None:
        self.lanes = KernelLanes(execution, calls, max_message_bytes, MemoryBudget())
        self._execution = execution
        self._calls = calls
        self._limit = max_message_bytes
        self._credentials = credentials
        # The daemon says where to listen, and which clients are permitted.
        self._listener: DirectListener | None = None
        self._tickets: TicketAuthentication | None = None

    async def listen(self, rules: pb.DirectCallRules, threads: KernelThreads) -> list[int]:
        """Listen at TCP ports as the daemon's rules say; return the ports."""
        streams = KernelStreams(
            self._execution, self._calls, threads, self._limit, rules.max_call_bytes
        )
        if rules.ticket_key:
            self._tickets = TicketAuthentication(
                rules.ticket_key, rules.session, lambda: self._calls.epoch
            )
        self._listener = DirectListener(streams, self._limit, self._tickets, self._credentials)
        return await self._listener.listen(rules)

    def revoke(self, revoked: Iterable[str]) -> None:
        """Refuse tickets that the daemon has revoked."""
        if self._tickets is not None:
            self._tickets.revoke(revoked)

    def close_tickets(self) -> None:
        """End what waits for tickets to expire."""
        if self._tickets is not None:
            self._tickets.close()

    async def close(self, patience: float) -> None:
        """Close the lane and the ports, once replies are written, or after ``patience`` seconds."""
        await self.lanes.finish(patience)
        if self._listener is not None:
            await self._listener.close(patience)
