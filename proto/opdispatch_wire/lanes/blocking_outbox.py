"""The outbox of a stream's sending thread."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from opdispatch_wire.chunks import LargeMessage, MessageOutbox


class BlockingOutbox:
    """A ``MessageOutbox`` for one sending thread. Any thread may put messages into it.

    Only ``_queue`` is shared between threads; everything else belongs to the sending thread.
    """

    def __init__(self) -> None:
        # None ends the stream.
        self._queue: queue.SimpleQueue[bytes | LargeMessage | None] = queue.SimpleQueue()

    def put(self, message: bytes | LargeMessage) -> None:
        """Queue a message."""
        self._queue.put(message)

    def end(self) -> None:
        """Stop sending; the rest of a large message is dropped."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        ready = MessageOutbox()
        while (message := self._queue.get()) is not None:
            if isinstance(message, bytes):
                yield message  # the usual case: no large message to interleave with
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
