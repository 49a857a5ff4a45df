"""The free parts of a region: extents in order, merged where they touch."""

from __future__ import annotations

from bisect import bisect_left


class FreeExtents:
    """The free extents within ``size`` bytes. Not thread-safe.

    Invariants  I1  extents are in ascending order and do not overlap;
                I2  no two extents touch: bytes that are given back are merged.
    """

    __slots__ = ("_starts", "_stops", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts = [0]
        self._stops = [size]

    def take(self, length: int) -> int | None:
        """Take the lowest free ``length`` bytes, and return their offset; None if there are none.

        The lowest ones have most likely been used before, so that their pages exist already.
        """
        for i, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= length:
                self._starts[i] += length
                if self._starts[i] == stop:
                    del self._starts[i], self._stops[i]
                return start
        return None

    def give_back(self, start: int, length: int) -> None:
        """Free bytes that were taken, or a part of them."""
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
