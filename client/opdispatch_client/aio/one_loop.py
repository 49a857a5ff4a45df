"""The event loop to which an asyncio session is bound."""

from __future__ import annotations

import asyncio

from opdispatch_client.endpoint import Endpoint
from opdispatch_wire.errors import EventLoopError


class OneLoop:
    """The event loop that is running on construction; the session cannot be used in another."""

    __slots__ = ("_endpoint", "loop")

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.loop = asyncio.get_running_loop()

    def check(self) -> None:
        """Raise EventLoopError in another event loop, DaemonUnavailableError in a forked child."""
        self._endpoint.check_process()  # first, since a forked child also has another event loop
        if asyncio.get_running_loop() is not self.loop:
            state = "closed already" if self.loop.is_closed() else "another one"
            raise EventLoopError(
                f"the session with {self._endpoint.address} belongs to the event loop that it was "
                f"opened in, which is {state}",
                hint="open a session in each event loop, with connect(), or do everything in one "
                "asyncio.run()",
            )
