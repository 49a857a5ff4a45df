"""The watch of a task on new nodes: saved tensors are packed, callers recorded.

Most programs want neither, so a call that is recorded asks one list that all threads share, and
only if that has something in it what its own task wants.

Mirrors ``SavedTensorDefaultHooks`` and ``AnomalyMode`` of ``torch/csrc/autograd``.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from opdispatch.local_state.caller_frames import is_between


class SavedTensorHooks(NamedTuple):
    """Functions that a saved tensor goes through: to what is kept, and back to a tensor."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


if TYPE_CHECKING:  # nothing at run time asks for it

    class WatchedNode(Protocol):
        """The part of a ``Node`` that is looked at when it is made."""

        made_at: MadeAt | None

        @property
        def name(self) -> str:
            """Name in messages."""

        def pack_saved(self, hooks: SavedTensorHooks) -> None:
            """Pack the saved tensors by ``hooks``."""


WATCHED: list[None] = []
"""One entry for each ``GraphWatch`` there is that wants something. Adding and removing are one
operation each under the GIL."""


@dataclass(frozen=True, slots=True)
class GraphWatch:
    """Watchers that a task has switched on: an immutable value, replaced as a whole.

    As long as some context has it, be it a copy for another task, it is in ``WATCHED``.
    """

    hooks: SavedTensorHooks | None = None
    refusal: str | None = None
    """Why hooks may not be switched on; None: they may."""
    detects_anomalies: bool = False
    checks_nan: bool = True
    evaluating: WatchedNode | None = None
    """The node that is being done, where anomalies are detected."""

    def _wants_something(self) -> bool:
        return self.hooks is not None or self.detects_anomalies

    def __post_init__(self) -> None:
        if self._wants_something():
            WATCHED.append(None)

    def __del__(self, forget: Callable[[], None] = WATCHED.pop) -> None:
        if self._wants_something():
            forget()


_NOTHING = GraphWatch()
GRAPH_WATCH: ContextVar[GraphWatch] = ContextVar("opdispatch_graph_watch", default=_NOTHING)


def change_watch(**changes: Any) -> GraphWatch:
    """Change what the current task wants; return what that was."""
    before = GRAPH_WATCH.get()
    GRAPH_WATCH.set(replace(before, **changes))
    return before


class MadeAt(NamedTuple):
    """Where a node was made: who called, and which node was being done then, if any."""

    stack: Sequence[traceback.FrameSummary]
    evaluating: WatchedNode | None


def note_made(node: WatchedNode) -> None:
    """Record where a node was made, if anomalies are detected.

    Called for each node while ``WATCHED``.
    """
    wanted = GRAPH_WATCH.get()
    if not wanted.detects_anomalies:
        return
    frames = traceback.walk_stack(sys._getframe(1))
    callers = ((frame, line) for frame, line in frames if not is_between(frame))
    stack = traceback.StackSummary.extract(callers, lookup_lines=False)
    node.made_at = MadeAt(stack[::-1], wanted.evaluating)


def note_recorded(node: WatchedNode) -> None:
    """Record a node of a recorded call and pack its saved tensors.

    Called when it has all of them.
    """
    note_made(node)
    if (hooks := GRAPH_WATCH.get().hooks) is not None:
        node.pack_saved(hooks)
