"""The streams on which clients hold their values: ``ExecutionService.HoldValues``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from opdispatch_server.daemon.event_loop.slices import in_slices
from opdispatch_server.daemon.values.direct_keeps import DirectKeeps
from opdispatch_server.daemon.values.identity_quota import ValueQuota
from opdispatch_server.daemon.values.table import RemoteValueTable, ValueHolder
from opdispatch_server.serving.grpc_services import Malformed
from opdispatch_server.serving.status_answers import Context
from opdispatch_server.value_ids import ids_meant
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.status import stopping_error
from opdispatch_wire.v1 import remote_pb2

INTERVAL = 2.5
"""Seconds between a client's messages, at most."""
SILENCE = 3 * INTERVAL
"""Seconds without a message after which a client counts as gone."""


class ValueLeases:
    """Serves the streams on which clients hold values. For use in the event loop only.

    The end of a client's process ends its stream at once. Silence reveals a failed machine or
    network; on this machine neither can fail alone, and a silent client may have been stopped by a
    user who wants to resume it.
    """

    def __init__(self, table: RemoteValueTable, keeps: DirectKeeps) -> None:
        self._table = table
        self._keeps = keeps
        self._is_stopping = False

    def stop(self) -> None:
        """Accept no new clients: the daemon is stopping."""
        self._is_stopping = True

    async def serve(
        self, requests: AsyncIterator[Any], context: Context, quota: ValueQuota | None = None
    ) -> None:
        """Hold one client's values until its stream ends or it falls silent.

        Raises WireError for anything but a message, and RefusedError.
        """
        if self._is_stopping:
            raise stopping_error("it keeps no values")
        holder = self._table.open(quota)
        try:
            await context.write(
                remote_pb2.HoldValuesReply(
                    session=holder.name,
                    interval=INTERVAL,
                    max_values=self._table.limits.values,
                    max_bytes=self._table.limits.bytes,
                )
            )
            is_here = context.peer().startswith("unix")
            await self._follow(holder, requests, None if is_here else SILENCE)
        finally:
            self._table.close(holder)

    async def _follow(
        self, holder: ValueHolder, requests: AsyncIterator[Any], silence: float | None
    ) -> None:
        while True:
            try:
                async with asyncio.timeout(silence):
                    request = await anext(requests)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise RefusedError(
                    f"the client has said nothing for {SILENCE:g} s; its values are gone"
                ) from None
            if isinstance(request, Malformed):
                raise request.error()
            meant = ids_meant(request.release, holder.values)
            unheard = [each for each in request.release if each not in holder.values]
            async for part in in_slices(meant):
                self._table.release(holder, part)
            if unheard:
                await self._keeps.release(holder, unheard)
