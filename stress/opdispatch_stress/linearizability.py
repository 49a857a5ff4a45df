"""Checks whether a history of concurrent operations is linearizable.

A history is linearizable (Herlihy and Wing, 1990) if each operation can be assigned an instant
between its invocation and its response such that a sequential model, which executes the operations
in the order of these instants, gives the same responses.

The search is that of Wing and Gong (1993) with the memoization of Lowe (2017): it extends an order
by any operation that was invoked before the first unexplained response, and never visits the same
set of completed operations with the same state twice. A history about several objects is
linearizable if its part for each object is (P-compositionality, Horn and Kroening 2015), which
keeps the searches small.

An operation without a response may have taken effect at any time after its invocation, or never.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Step = Callable[[Hashable, str, Any, Any], Iterable[Hashable]]
"""The model: maps a state, an operation's kind and argument, and its response, to the next states.

There are none if the model would not have given that response. A missing response is ``UNKNOWN``.
"""

UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one client on one object."""

    name: str
    """The name of the object."""
    kind: str
    argument: Any
    response: Any
    invoked: float
    returned: float
    """Time of the response; infinity if it is UNKNOWN."""


class UnexplainedError(AssertionError):
    """A history is not linearizable; the message has the longest order that was found."""


def check_linearizable(
    history: Iterable[Operation],
    start: Hashable,
    step: Step,
    *,
    looks: Container[str] = (),
    most: float = math.inf,
) -> None:
    """Raise UnexplainedError unless every object's operations are linearizable from ``start``.

    `looks` are the kinds of read-only operations, which shorten the search. An object that is
    undecided after `most` steps of the search passes.
    """
    of_object: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        of_object[operation.name].append(operation)
    for name in sorted(of_object):
        _Search(of_object[name], start, step, looks).run(most)


class _Search:
    """One object's operations in order of invocation, and the search for their order.

    A set of completed operations is stored as the first one that is not completed, and the few
    completed ones after it, as bits: a search visits thousands of sets that differ only in a small
    window.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        start: Hashable,
        step: Step,
        looks: Container[str],
    ) -> None:
        self._operations = sorted(operations, key=lambda operation: operation.invoked)
        self._start = start
        self._step = step
        self._looks = looks
        # From each index on, the earliest response: no later invocation can precede it.
        self._first_return = [math.inf] * (len(self._operations) + 1)
        for place in reversed(range(len(self._operations))):
            returned = self._operations[place].returned
            self._first_return[place] = min(returned, self._first_return[place + 1])
        # From each index on, whether any operation must be explained.
        self._required = [False] * (len(self._operations) + 1)
        for place in reversed(range(len(self._operations))):
            required = self._operations[place].response is not UNKNOWN
            self._required[place] = required or self._required[place + 1]

    def run(self, most: float) -> None:
        """Search depth-first: most histories need hardly any backtracking."""
        stack = [(0, 0, self._start)]
        seen = set(stack)
        best = 0
        while stack and len(seen) <= most:
            first, window, state = stack.pop()
            if self._is_explained(first, window):
                return
            best = max(best, first)
            for following in self._continuations(first, window, state):
                if following not in seen:
                    seen.add(following)
                    stack.append(following)
        if not stack:
            raise UnexplainedError(self._describe(best, len(seen)))

    def _is_explained(self, first: int, window: int) -> bool:
        """Return whether all remaining operations may never have taken effect."""
        if not self._required[first]:
            return True
        last = first + window.bit_length()
        return not self._required[last] and all(
            window >> (place - first) & 1 or self._operations[place].response is UNKNOWN
            for place in range(first, last)
        )

    def _continuations(
        self, first: int, window: int, state: Hashable
    ) -> Iterable[tuple[int, int, Hashable]]:
        """Return the extensions of the order by one operation, the likeliest last.

        The earlier an operation returned, the likelier it took effect first.
        """
        found = []
        pending_return = self._earliest_pending_return(first, window)
        place = first
        while place < len(self._operations):
            operation = self._operations[place]
            if operation.invoked > pending_return:
                break
            if not window >> (place - first) & 1:
                done = self._done(first, window, place)
                states = [
                    *self._step(state, operation.kind, operation.argument, operation.response)
                ]
                if states and operation.kind in self._looks:
                    # If it comes later in a complete order, it could as well have come here.
                    return [(*done, state)]
                found += [(*done, after) for after in states]
            place += 1
        return reversed(found)

    def _earliest_pending_return(self, first: int, window: int) -> float:
        earliest = math.inf
        place = first
        while window >> (place - first):
            if not window >> (place - first) & 1:
                earliest = min(earliest, self._operations[place].returned)
            place += 1
        return min(earliest, self._first_return[place])

    def _done(self, first: int, window: int, place: int) -> tuple[int, int]:
        window |= 1 << (place - first)
        while window & 1:
            window >>= 1
            first += 1
        return first, window

    def _describe(self, best: int, searched: int) -> str:
        around = self._operations[max(best - 5, 0) : best + 12]
        lines = [
            f"  [{op.invoked:.6f}, {op.returned:.6f}] {op.kind}({op.argument!r}) -> "
            + ("?" if op.response is UNKNOWN else repr(op.response))
            for op in around
        ]
        return (
            f"{len(self._operations)} operations on {self._operations[0].name} fit no order "
            f"({searched} tried); explained were the first {best}, and around there is:\n"
            + "\n".join(lines)
        )
