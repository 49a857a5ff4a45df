"""The state in which a task records nodes: its saved-tensor hooks, and its anomaly detection.

Most programs use neither. A recorded call therefore checks one list shared by all threads first,
and reads the state of its own task only if that list is not empty.

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
    """The pack and unpack hooks for saved tensors."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]


if TYPE_CHECKING:  # nothing at run time asks for it

    class RecordedNode(Protocol):
        """The part of a ``Node`` that is used when it is created."""

        made_at: MadeAt | None

        @property
        def name(self) -> str:
            """Name in messages."""

        def pack_saved(self, hooks: SavedTensorHooks) -> None:
            """Pack the saved tensors by ``hooks``."""


WATCHED: list[None] = []
"""One entry for each live ``RecordingState`` with hooks or anomaly detection. Append and remove are
each a single operation under the GIL, so no lock is needed."""


@dataclass(frozen=True, slots=True)
class RecordingState:
    """The hooks and anomaly settings of a task: an immutable value, replaced as a whole.

    It stays in ``WATCHED`` as long as any context refers to it, including copies for other tasks.
    """

    hooks: SavedTensorHooks | None = None
    refusal: str | None = None
    """Reason why saved-tensor hooks are disabled; None if they are allowed."""
    detects_anomalies: bool = False
    checks_nan: bool = True
    evaluating: RecordedNode | None = None
    """The node that is running, if anomaly detection is enabled."""

    def _wants_something(self) -> bool:
        return self.hooks is not None or self.detects_anomalies

    def __post_init__(self) -> None:
        if self._wants_something():
            WATCHED.append(None)

    def __del__(self, forget: Callable[[], None] = WATCHED.pop) -> None:
        if self._wants_something():
            forget()


_NOTHING = RecordingState()
RECORDING_STATE: ContextVar[RecordingState] = ContextVar(
    "opdispatch_recording_state", default=_NOTHING
)


def change_recording_state(**changes: Any) -> RecordingState:
    """Change the settings of the current task; return the previous ones."""
    before = RECORDING_STATE.get()
    RECORDING_STATE.set(replace(before, **changes))
    return before


class MadeAt(NamedTuple):
    """Origin of a node: the traceback of its call and the node that was running, if any."""

    stack: Sequence[traceback.FrameSummary]
    evaluating: RecordedNode | None


def note_made(node: RecordedNode) -> None:
    """Record the traceback of a node if anomaly detection is enabled.

    Called for each node while ``WATCHED``.
    """
    wanted = RECORDING_STATE.get()
    if not wanted.detects_anomalies:
        return
    frames = traceback.walk_stack(sys._getframe(1))
    callers = ((frame, line) for frame, line in frames if not is_between(frame))
    stack = traceback.StackSummary.extract(callers, lookup_lines=False)
    node.made_at = MadeAt(stack[::-1], wanted.evaluating)


def note_recorded(node: RecordedNode) -> None:
    """Record the origin of a node and pack its saved tensors.

    Called after all of them have been saved.
    """
    note_made(node)
    if (hooks := RECORDING_STATE.get().hooks) is not None:
        node.pack_saved(hooks)
