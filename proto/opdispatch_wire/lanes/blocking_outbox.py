"""The outbox of a stream's sending thread."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from opdispatch_wire.chunks import LargeMessage, MessageOutbox


class BlockingOutbox:
    """``MessageOutbox`` for one sending thread; any thread may put messages into it.

    ``_queue`` hands over between them; everything else is the sending thread's.
    """

    def __init__(self) -> None:
        # None ends the stream.
        self._queue: queue.SimpleQueue[bytes | LargeMessage | None] = queue.SimpleQueue()

    def put(self, message: bytes | LargeMessage) -> None:
        """Add one to be sent."""
        self._queue.put(message)

    def end(self) -> None:
        """Stop sending; a large message under way is not finished."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        ready = MessageOutbox()
        while (message := self._queue.get()) is not None:
            if isinstance(message, bytes):
                yield message  # as nearly always: there is nothing to choose from
                continue
            ready.put(message)
            while True:
                while not self._queue.empty():
                    if (message := self._queue.get()) is None:
                        return
                    ready.put(message)
                if (piece := ready.next_piece()) is None:
                    break
                yield piece
