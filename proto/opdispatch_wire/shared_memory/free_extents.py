"""Which parts of a region are free: extents in order of place, never two side by side."""

from __future__ import annotations

from bisect import bisect_left


class FreeExtents:
    """The free part of ``size`` bytes. Not thread-safe.

    Invariants  I1  extents are in order of place and do not overlap;
                I2  between two of them something is taken: what is given back merges.
    """

    __slots__ = ("_starts", "_stops", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts = [0]
        self._stops = [size]

    def take(self, length: int) -> int | None:
        """Take the lowest place where ``length`` bytes are free; return None if there is none.

        The lowest: it was likeliest in use before, and its pages are there already.
        """
        for i, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= length:
                self._starts[i] += length
                if self._starts[i] == stop:
                    del self._starts[i], self._stops[i]
                return start
        return None

    def give_back(self, start: int, length: int) -> None:
        """Free what was taken, or a part of it."""
        stop = start + length
        i = bisect_left(self._starts, start)
        before = i > 0 and self._stops[i - 1] == start
        after = i < len(self._starts) and self._starts[i] == stop
        if before and after:
            self._stops[i - 1] = self._stops[i]
            del self._starts[i], self._stops[i]
        elif before:
            self._stops[i - 1] = stop
        elif after:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._stops.insert(i, stop)

    def extents(self) -> list[tuple[int, int]]:
        """Return (start, stop) of each free extent, in order."""
        return list(zip(self._starts, self._stops, strict=True))
