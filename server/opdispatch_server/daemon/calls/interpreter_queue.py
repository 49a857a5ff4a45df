"""The queue of calls to one interpreter: decide which run, wait or are refused.

Note [Calls that are sent ahead]
    Between the end of one call and the start of the next lies a round trip to the daemon. For quick
    kernels that round trip takes longer than the kernel, so their library is sent CALLS_AHEAD more
    calls than it may run; the interpreter has only as many threads for the library as it may run
    calls, and so holds the rest back. A library whose kernels take longer than QUICK is sent no
    more than it can run: calls that wait in the daemon survive the interpreter's death.

Note [Calls of several libraries]
    A program that uses several libraries takes one slot of each, in the order of their load ids, so
    that no two programs can wait for each other. It is never sent ahead, and while it runs, no
    other call is sent ahead either; in the interpreter it waits for the direct calls running there.
    It runs in one thread, so only its first slot counts towards the interpreter's limit: if all
    counted, programs that hold some of their slots could exhaust the limit and deadlock. For the
    same reason a program that has a thread passes the calls of a library that wait for a thread:
    that library may be all it is waiting for.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from typing import NamedTuple

from opdispatch_server.access.authentication import CALLER
from opdispatch_server.call_context import KERNEL_THREADS
from opdispatch_server.daemon.calls.quotas import has_quota, quota_error
from opdispatch_wire.errors import InterpreterDiedError, QueueFullError

# The clock of the event loop.
_now = time.monotonic

CALLS_AHEAD = 7
QUICK = 0.02

SHORTEST_RETRY = 0.05
LONGEST_RETRY = 30.0
# Seconds between the ends of two calls, assumed until a queued call has ended.
UNKNOWN_PACE = 0.1
# The weight of the newest interval in the moving average.
NEWEST_SHARE = 0.125


class QueueLimits(NamedTuple):
    """The limits of an interpreter's queue."""

    calls: int
    bytes: int
    calls_of_one: int | None = None
    """Calls of one identity that has quotas; None: no separate limit."""


class SlotKind(enum.Enum):
    """The purpose of a slot. See Note [Calls of several libraries]."""

    ONLY = "only"  # a call of one library
    FIRST = "first"  # the first of several slots
    FURTHER = "further"

    __hash__ = object.__hash__  # that of Enum is a Python function


class Slot:
    """The right to run one call. The holder releases it once, when the kernel has ended."""

    __slots__ = ("_lane", "_queue", "began", "is_ahead", "kind")

    def __init__(
        self, queue: InterpreterQueue, lane: _Lane, kind: SlotKind, *, is_ahead: bool
    ) -> None:
        self._queue = queue
        self._lane = lane
        self.kind = kind
        self.is_ahead = is_ahead
        """The call was sent ahead: another call must end before it begins."""
        self.began = _now()

    def release(self) -> None:
        """Release the slot to the next call."""
        self._queue._release(self._lane, self)


class _Waiter:
    """One call in the queue. Its future yields the slot."""

    __slots__ = ("future", "identity", "kind", "may_move", "operator", "size")

    def __init__(self, operator: str, size: int, kind: SlotKind, *, may_move: bool) -> None:
        self.operator = operator
        self.may_move = may_move
        self.size = size
        self.kind = kind
        # The identity, if it has quotas; otherwise empty.
        caller = CALLER.get()
        self.identity = caller.name if has_quota(caller) else ""
        self.future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()

    @property
    def is_gone(self) -> bool:
        """Whether the call was cancelled and its task has not yet run since."""
        return self.future.done()


class _Lane:
    """The calls of one library version that run or wait."""

    __slots__ = ("ahead", "further", "limit", "load_id", "running", "seconds", "shared", "waiting")

    def __init__(self, load_id: int, limit: int) -> None:
        self.load_id = load_id
        self.limit = limit
        self.running = 0  # including calls that were sent ahead
        # Of these, calls that also hold slots of other libraries, by kind.
        self.shared = {SlotKind.FIRST: 0, SlotKind.FURTHER: 0}
        # Calls sent ahead, in the order of sending.
        self.ahead: OrderedDict[Slot, None] = OrderedDict()
        # Waiting calls, in order of arrival.
        self.waiting: OrderedDict[_Waiter, None] = OrderedDict()
        # The waiting calls that have a thread already.
        self.further: OrderedDict[_Waiter, None] = OrderedDict()
        # The average duration of a call; unknown until the first has ended.
        self.seconds = QUICK

    @property
    def is_quick(self) -> bool:
        """See Note [Calls that are sent ahead]."""
        return self.seconds < QUICK


class InterpreterQueue:
    """The queue of one interpreter. For use in the event loop only; only ``enter`` waits.

    Calls of a library start in order of arrival, except that programs with a thread pass others.
    Libraries that wait for the interpreter take turns. Invariants, between any two steps of the
    event loop:

    - a lane runs at most ``limit`` calls, and has at most ``calls_ahead`` more; all lanes
      together have at most KERNEL_THREADS;
    - no call waits that could run;
    - ``calls_queued`` and ``bytes_queued`` are the sums over all lanes, and within the limits;
    - a lane exists while something runs or waits in it.
    """

    def __init__(self, name: str, limits: QueueLimits, *, calls_ahead: int = CALLS_AHEAD) -> None:
        self.calls_running = 0
        self.calls_queued = 0
        self.bytes_queued = 0
        self._queued_of: Counter[str] = Counter()
        self._name = name
        self._limits = limits
        self._calls_ahead = calls_ahead
        self._lanes: dict[int, _Lane] = {}
        # The lanes in which calls wait; the one whose turn is next comes first.
        self._turns: OrderedDict[int, _Lane] = OrderedDict()
        self._pace = Pace()
        self._closed: Callable[[str], InterpreterDiedError] | None = None
        self._is_held = False
        self._idle: asyncio.Future[None] | None = None

    def hold(self) -> None:
        """Start no calls until ``let_go``, because a call is about to run alone, without a slot."""
        self._is_held = True

    def let_go(self) -> None:
        """Undo ``hold`` and admit waiting calls."""
        self._is_held = False
        self._admit_next()

    async def wait_idle(self) -> None:
        """Wait until no call is running; only one caller may wait at a time."""
        if self.calls_running:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def try_enter(
        self, load_id: int, limit: int, operator: str, kind: SlotKind = SlotKind.ONLY
    ) -> Slot | None:
        """Enter like ``enter``, but return None where that would wait or raise QueueFullError."""
        if self._closed is not None:
            raise self._closed(operator)
        lane = self._lanes.get(load_id)
        if lane is None:
            if kind is not SlotKind.FURTHER and self.calls_running >= KERNEL_THREADS:
                return None
            lane = self._lanes[load_id] = _Lane(load_id, limit)
        if lane.waiting or not self._can_run(lane, kind):
            self._forget_if_empty(lane)
            return None
        return self._start(lane, kind)

    async def enter(
        self,
        load_id: int,
        limit: int,
        operator: str,
        size: Callable[[], int],
        kind: SlotKind = SlotKind.ONLY,
        *,
        may_move: bool = False,
    ) -> Slot:
        """Wait for the right to run a call of ``operator`` in the version ``load_id``.

        That version runs at most ``limit`` calls at a time. ``size`` is called only if the call has
        to wait. Raises QueueFullError; and InterpreterDiedError, with "no" as ``facts["started"]``,
        if the interpreter ends before the call's turn, or if a call that ``may_move`` is sent away.
        """
        if (slot := self.try_enter(load_id, limit, operator, kind)) is not None:
            return slot
        lane = self._lanes.get(load_id) or _Lane(load_id, limit)
        waiter = _Waiter(operator, size(), kind, may_move=may_move)
        self._check_share(waiter)
        self._make_room(lane, waiter)
        self._add(lane, waiter)
        if kind is SlotKind.FURTHER:  # the slots taken before it may be waiting for a thread
            self._admit_next()
        try:
            return await waiter.future
        except BaseException:
            # Cancelled, perhaps in the very step in which it was given its slot.
            if waiter in lane.waiting:
                self._remove(lane, waiter)
                self._forget_if_empty(lane)
                self._admit_next()  # it may have been blocking the calls behind it
            elif not waiter.future.cancelled() and waiter.future.exception() is None:
                waiter.future.result().release()
            raise

    def send_away(
        self, stays: Container[str], explain: Callable[[str], InterpreterDiedError]
    ) -> None:
        """Send calls that may move to other interpreters, because the running kernel may never end.

        Calls of the operators in ``stays`` stay.
        """
        for lane in list(self._turns.values()):
            for waiter in list(lane.waiting):
                if waiter.may_move and waiter.operator not in stays:
                    self._dismiss(lane, waiter, explain(waiter.operator))
        self._admit_next()  # they may have been blocking the calls behind them

    def close(self, explain: Callable[[str], InterpreterDiedError]) -> None:
        """Send all calls away, now and from now on: the interpreter is gone."""
        self._closed = explain
        for lane in list(self._turns.values()):
            for waiter in list(lane.waiting):
                self._dismiss(lane, waiter, explain(waiter.operator))

    def check_invariants(self) -> list[str]:
        """Return descriptions of the violated invariants."""
        lanes = self._lanes.values()
        idle = [
            lane
            for lane in lanes
            if (waiter := self._find_next(lane)) is not None and not waiter.is_gone
        ]
        claims = {
            "a lane is over its limit": all(
                0 <= lane.running - len(lane.ahead) <= lane.limit
                and len(lane.ahead) <= self._calls_ahead
                for lane in lanes
            ),
            "running calls do not add up": self.calls_running
            == sum(lane.running - lane.shared[SlotKind.FURTHER] for lane in lanes),
            "queued calls do not add up": self.calls_queued == sum(len(la.waiting) for la in lanes),
            "queued bytes do not add up": self.bytes_queued
            == sum(waiter.size for lane in lanes for waiter in lane.waiting),
            "queued calls of identities do not add up": self._queued_of
            == Counter(w.identity for lane in lanes for w in lane.waiting if w.identity),
            "the queue is over its limits": self.calls_queued <= self._limits.calls
            and self.bytes_queued <= self._limits.bytes,
            "a call waits that could run": not idle,
            "a lane is empty": all(lane.running or lane.waiting for lane in lanes),
            "the turns are not those of the waiting lanes": {
                id(lane) for lane in self._turns.values()
            }
            == {id(lane) for lane in lanes if lane.waiting},
        }
        return [f"{self._name}: {claim}" for claim, holds in claims.items() if not holds]

    # -- steps ----------------------------------------------------------------------------------

    def _can_run(self, lane: _Lane, kind: SlotKind) -> bool:
        # A call that has a thread must be able to finish.
        if self._is_held and kind is not SlotKind.FURTHER:
            return False
        is_alone = kind is SlotKind.ONLY and not any(lane.shared.values())
        ahead = self._calls_ahead if lane.is_quick and is_alone else 0
        has_thread = kind is SlotKind.FURTHER or self.calls_running < KERNEL_THREADS
        return lane.running < lane.limit + ahead and has_thread

    def _start(self, lane: _Lane, kind: SlotKind) -> Slot:
        slot = Slot(self, lane, kind, is_ahead=lane.running - len(lane.ahead) >= lane.limit)
        if slot.is_ahead:
            lane.ahead[slot] = None
        lane.running += 1
        if kind is not SlotKind.ONLY:
            lane.shared[kind] += 1
        self.calls_running += kind is not SlotKind.FURTHER
        return slot

    def _release(self, lane: _Lane, slot: Slot) -> None:
        lane.running -= 1
        self.calls_running -= slot.kind is not SlotKind.FURTHER
        now = _now()
        if slot.kind is SlotKind.ONLY:
            lane.seconds += (now - slot.began - lane.seconds) * NEWEST_SHARE
        else:
            lane.shared[slot.kind] -= 1
        if slot.is_ahead:
            del lane.ahead[slot]
        elif lane.ahead:
            begins, _ = lane.ahead.popitem(last=False)
            begins.is_ahead = False
            begins.began = now
        if not self.calls_running and self._idle is not None:
            if not self._idle.done():
                self._idle.set_result(None)
            self._idle = None
        self._pace.count_end(now, busy=self.calls_queued > 0)
        self._admit_next()
        self._forget_if_empty(lane)

    def _admit_next(self) -> None:
        """Give free slots to the next calls."""
        admitted = True
        while admitted:  # a lane that has become quick may send several calls
            admitted = False
            for lane in list(self._turns.values()):
                if (waiter := self._take_next(lane)) is not None:
                    waiter.future.set_result(self._start(lane, waiter.kind))
                    admitted = True

    def _take_next(self, lane: _Lane) -> _Waiter | None:
        """Remove and return the lane's next call, if it can run."""
        while lane.waiting:
            waiter = self._find_next(lane)
            if waiter is None:
                return None
            self._remove(lane, waiter)
            if lane.waiting:
                self._turns.move_to_end(lane.load_id)
            if not waiter.is_gone:
                return waiter
        self._forget_if_empty(lane)
        return None

    def _find_next(self, lane: _Lane) -> _Waiter | None:
        """Return the first waiter if it can run or is gone; else the first that has a thread."""
        for waiting in (lane.waiting, lane.further):
            if waiting:
                waiter = next(iter(waiting))
                if waiter.is_gone or self._can_run(lane, waiter.kind):
                    return waiter
        return None

    def _add(self, lane: _Lane, waiter: _Waiter) -> None:
        self._lanes[lane.load_id] = lane
        lane.waiting[waiter] = None
        if waiter.kind is SlotKind.FURTHER:
            lane.further[waiter] = None
        self._turns[lane.load_id] = lane
        self.calls_queued += 1
        self.bytes_queued += waiter.size
        if waiter.identity:
            self._queued_of[waiter.identity] += 1
        self._pace.begin_queue(_now())

    def _remove(self, lane: _Lane, waiter: _Waiter) -> None:
        del lane.waiting[waiter]
        lane.further.pop(waiter, None)
        self.calls_queued -= 1
        self.bytes_queued -= waiter.size
        if waiter.identity:
            self._queued_of[waiter.identity] -= 1
            if not self._queued_of[waiter.identity]:
                del self._queued_of[waiter.identity]
        if not lane.waiting:
            del self._turns[lane.load_id]

    def _dismiss(self, lane: _Lane, waiter: _Waiter, error: Exception) -> None:
        self._remove(lane, waiter)
        self._forget_if_empty(lane)
        if not waiter.future.done():
            waiter.future.set_exception(error)

    def _forget_if_empty(self, lane: _Lane) -> None:
        if not lane.running and not lane.waiting:
            self._lanes.pop(lane.load_id, None)

    def _check_share(self, waiter: _Waiter) -> None:
        """Raise QueueFullError if the caller's identity has used its share of the queue."""
        most, queued = self._limits.calls_of_one, self._queued_of.get(waiter.identity, 0)
        if most is not None and waiter.identity and queued >= most:
            why = f"{queued} calls waiting for interpreter {self._name}"
            raise quota_error(CALLER.get(), why, waiter.operator)

    def _make_room(self, lane: _Lane, waiter: _Waiter) -> None:
        """Make room for one more call, or raise QueueFullError.

        A library that floods the queue gives way: the newest call of the longest lane is evicted in
        favour of a call of a shorter lane.
        """
        for longest, newest in self._find_room(lane, waiter):
            self._dismiss(longest, newest, self._full(newest))

    def _find_room(self, lane: _Lane, waiter: _Waiter) -> list[tuple[_Lane, _Waiter]]:
        """Return the calls to evict; none if the new call would be refused regardless."""
        calls, size = self.calls_queued, self.bytes_queued + waiter.size
        if calls < self._limits.calls and size <= self._limits.bytes:
            return []
        found = []
        lengths = {load_id: len(each.waiting) for load_id, each in self._turns.items()}
        newest_first = {load_id: reversed(each.waiting) for load_id, each in self._turns.items()}
        while calls >= self._limits.calls or size > self._limits.bytes:
            longest = max(lengths, key=lengths.__getitem__, default=lane.load_id)
            if lengths.get(longest, 0) <= len(lane.waiting) + 1:
                raise self._full(waiter)
            newest = next(newest_first[longest])
            found.append((self._turns[longest], newest))
            lengths[longest] -= 1
            calls -= 1
            size -= newest.size
        return found

    def _full(self, waiter: _Waiter) -> QueueFullError:
        delay = self._pace.time_to_end(_now(), self.calls_queued // 2 + 1)
        return QueueFullError(
            f"{self.calls_queued} calls with {self.bytes_queued} bytes are queued for interpreter "
            f"{self._name}, which is the limit; the call of {waiter.operator} never "
            "started",
            hint=f"try again in {delay:.3g} s; `opdispatch serve --queue N` sets the limit",
            operator=waiter.operator,
            interpreter=self._name,
            started="no",
            retry_after=f"{delay:.3f}",
        )


class Pace:
    """The throughput of a queue: the moving average of seconds between the ends of two calls."""

    def __init__(self) -> None:
        self._average = UNKNOWN_PACE
        self._last: float | None = None  # when a call last ended while another waited

    def begin_queue(self, now: float) -> None:
        """Record that a call waits."""
        if self._last is None:
            self._last = now

    def count_end(self, now: float, *, busy: bool) -> None:
        """Record that a call has ended; ``busy`` says whether another call was waiting."""
        if busy and self._last is not None:
            self._average += (now - self._last - self._average) * NEWEST_SHARE
        self._last = now if busy else None

    def time_to_end(self, now: float, calls: int) -> float:
        """Return the estimated time, in seconds, until that many calls have ended."""
        # A slow kernel slows the estimate down while it still runs.
        since = now - self._last if self._last is not None else 0.0
        return min(max(self._average * calls, since, SHORTEST_RETRY), LONGEST_RETRY)
