"""What a stream's sending thread takes its messages from."""

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
        """Adds one to be sent."""
        self._queue.put(message)

    def end(self) -> None:
        """Nothing more is sent; what is large, and under way, is not finished."""
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        ready = MessageOutbox()
        while True:
            piece = ready.next_piece()
            while piece is None or not self._queue.empty():
                message = self._queue.get()
                if message is None:
                    return
                ready.put(message)
                if piece is None:
                    piece = ready.next_piece()
            yield piece
