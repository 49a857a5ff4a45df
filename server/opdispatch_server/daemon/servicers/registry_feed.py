"""The registry as a stream of changes: one snapshot serves all watchers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from opdispatch.errors import InternalError
from opdispatch_server.daemon.interpreters.call_activity import CallActivity
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.servicers.operator_log import OperatorLog
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.v1 import registry_pb2 as pb

ACTIVITY_CHECK_SECONDS: Final = 1.0
"""Seconds between two looks at interpreters and calls. A new epoch is noticed at once."""
SILENCE: Final = 10.0
"""Seconds without a change after which a watcher is sent an empty reply."""
MOST_WATCHERS: Final = 1000
_REPLY_BYTES = 1 << 20

LibraryKey = tuple[str, int]

# Fields that calls change do not count as changes of the registry.
_LIBRARY_COUNTS = ("calls_in_flight", "kernel_errors")
_INTERPRETER_COUNTS = (
    "calls_in_flight",
    "calls_total",
    "heartbeat_age_seconds",
    "last_lines",
    "calls_queued",
    "bytes_queued",
    "transfers",
    "remote_values",
    "remote_bytes",
    "kernel_errors",
)


class RegistrySnapshot(NamedTuple):
    """The registry at one moment, except for its operators, which the log has."""

    epoch: int
    libraries: Mapping[LibraryKey, pb.Library]
    interpreters: Mapping[str, pb.Interpreter]
    activity: pb.Activity
    """As of the last look at calls; the same object until the next one."""
    kernel_errors: Mapping[LibraryKey, int]


class RegistryFeed:
    """Takes snapshots of the registry while there are watchers. For the event loop only.

    Guards      ``publication`` is held during a snapshot: operators, libraries and epoch agree.
    Invariants  I1  ``_looking`` runs while there are watchers;
                I2  ``_next`` is resolved after each look, and replaced.
    Cost        a watcher has no queue: a slow one compares the last snapshot that it was sent with
                the current one. Each snapshot is taken once, however many watch.
    """

    def __init__(
        self,
        operators: OperatorRegistry,
        view: RegistryView,
        publication: asyncio.Lock,
        activity: CallActivity,
    ) -> None:
        self.instance = secrets.token_hex(8)
        self.log = OperatorLog(view.operator_rows)
        self._operators = operators
        self._view = view
        self._publication = publication
        self._activity = activity
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Future[None] = self._loop.create_future()
        self._latest: RegistrySnapshot | None = None
        self._watchers = 0
        self._looking: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._is_stopped = False
        operators.on_epoch = self._begun.set

    @property
    def watchers(self) -> int:
        """The number of watchers."""
        return self._watchers

    def stop(self) -> None:
        """Send all watchers away, now and from now on."""
        self._is_stopped = True
        self._resolve()

    def _resolve(self) -> None:
        done, self._next = self._next, self._loop.create_future()
        done.set_result(None)

    async def snapshots(self) -> AsyncGenerator[RegistrySnapshot, None]:
        """Yield the registry as it is, and again after each snapshot, as soon as requested.

        Raises RefusedError when the daemon is stopping, or there are too many watchers.
        """
        if self._watchers >= MOST_WATCHERS:
            raise RefusedError(f"{MOST_WATCHERS} watch the registry already", hint="try again")
        self._watchers += 1
        if self._looking is None:
            self._looking = self._loop.create_task(self._look_again_and_again())
        looking, seen = self._looking, None
        try:
            while not self._is_stopped:
                if self._latest is not None and self._latest is not seen:
                    seen = self._latest
                    yield seen
                    continue
                await asyncio.wait((self._next, looking), return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    looking.result()
            raise RefusedError("the daemon is stopping; nothing will change any more")
        finally:
            self._watchers -= 1
            if not self._watchers:
                looking.cancel()
                self._looking = self._latest = None

    async def fresh(self) -> RegistrySnapshot:
        """Return the registry as of the epoch at the time of the call, or a later one.

        Raises RefusedError as ``snapshots`` does.
        """
        epoch = self._operators.epoch
        async with aclosing(self.snapshots()) as snapshots:
            async for snapshot in snapshots:
                if snapshot.epoch >= epoch:
                    return snapshot
        raise InternalError("the registry's feed has ended unexpectedly")

    async def _look_again_and_again(self) -> None:
        self._activity.forget()
        activity, looked = pb.Activity(), -ACTIVITY_CHECK_SECONDS
        while True:
            self._begun.clear()
            async with self._publication:
                epoch = self._operators.epoch
                libraries = self._view.list_libraries(all_versions=True).libraries
                interpreters = self._view.list_interpreters().interpreters
                if epoch != self.log.epoch:
                    await asyncio.to_thread(self.log.update, epoch)
            if time.monotonic() - looked >= ACTIVITY_CHECK_SECONDS:
                looked = time.monotonic()
                activity = await asyncio.to_thread(self._activity.look, interpreters)
            errors = {(each.name, each.version): each.kernel_errors for each in libraries}
            self._latest = RegistrySnapshot(
                epoch,
                {(each.name, each.version): _without(each, _LIBRARY_COUNTS) for each in libraries},
                {each.name: _without(each, _INTERPRETER_COUNTS) for each in interpreters},
                activity,
                errors,
            )
            self._resolve()
            with suppress(TimeoutError):
                async with asyncio.timeout(ACTIVITY_CHECK_SECONDS):
                    await self._begun.wait()

    async def changes(
        self, request: pb.WatchRegistryRequest
    ) -> AsyncGenerator[pb.WatchRegistryReply, None]:
        """Yield the replies to one watcher. Raises RefusedError as ``snapshots`` does."""
        epoch = request.from_epoch if request.HasField("from_epoch") else None
        if request.instance and request.instance != self.instance:
            epoch = None
        before, sent = RegistrySnapshot(-1, {}, {}, pb.Activity(), {}), -SILENCE
        async with aclosing(self.snapshots()) as snapshots:
            async for now in snapshots:
                replies = self._replies(before, epoch, now, request.activity)
                if replies or time.monotonic() - sent >= SILENCE:
                    for reply in replies or [self._reply(now.epoch)]:
                        yield reply
                    sent = time.monotonic()
                before, epoch = now, now.epoch

    def _replies(
        self, before: RegistrySnapshot, epoch: int | None, now: RegistrySnapshot, activity: bool
    ) -> list[pb.WatchRegistryReply]:
        """Return the difference of two snapshots; ``epoch`` is that of the earlier operators."""
        parts: list[pb.WatchRegistryReply] = []
        is_whole = False
        if epoch != now.epoch:
            changes = self.log.since(epoch)
            is_whole = changes.is_whole
            parts += self._parted(now.epoch, "operators", changes.changed)
            parts += self._parted(now.epoch, "operators_gone", changes.gone)
        gone = [
            pb.LibraryVersion(name=name, version=version)
            for name, version in before.libraries.keys() - now.libraries.keys()
        ]
        interpreters_gone = sorted(before.interpreters.keys() - now.interpreters.keys())
        for field, values in (
            ("libraries", _changed(before.libraries, now.libraries)),
            ("libraries_gone", gone),
            ("interpreters", _changed(before.interpreters, now.interpreters)),
            ("interpreters_gone", interpreters_gone),
        ):
            parts += self._parted(now.epoch, field, values)
        if activity and now.activity is not before.activity:
            parts.append(self._reply(now.epoch, activity=now.activity))
        if is_whole and not parts:
            parts.append(self._reply(now.epoch))
        if not parts and epoch is not None and epoch != now.epoch:
            parts.append(self._reply(now.epoch))
        return _joined(parts, is_whole=is_whole)

    def _parted(
        self, epoch: int, field: str, values: Iterable[Any]
    ) -> Iterator[pb.WatchRegistryReply]:
        """Yield replies of limited size with these values."""
        reply, size = self._reply(epoch), 0
        for value in values:
            getattr(reply, field).append(value)
            size += len(value) if isinstance(value, str) else value.ByteSize()
            if size > _REPLY_BYTES:
                yield reply
                reply, size = self._reply(epoch), 0
        if size:
            yield reply

    def _reply(self, epoch: int, **fields: Any) -> pb.WatchRegistryReply:
        return pb.WatchRegistryReply(instance=self.instance, epoch=epoch, **fields)


def _joined(
    parts: Iterable[pb.WatchRegistryReply], *, is_whole: bool
) -> list[pb.WatchRegistryReply]:
    """Return the replies for one change: small ones merged, all but the last marked."""
    replies: list[pb.WatchRegistryReply] = []
    for part in parts:
        if replies and replies[-1].ByteSize() + part.ByteSize() < _REPLY_BYTES:
            replies[-1].MergeFrom(part)
        else:
            replies.append(part)
    for reply in replies:
        reply.whole, reply.more = is_whole, reply is not replies[-1]
    return replies


def _without(message: Any, fields: Iterable[str]) -> Any:
    for field in fields:
        message.ClearField(field)
    return message


def _changed(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> list[Any]:
    return [each for key, each in now.items() if before.get(key) != each]
