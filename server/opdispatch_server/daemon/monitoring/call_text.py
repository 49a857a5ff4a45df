"""The metrics of calls as text, which is kept for each series until its counts change.

prometheus-client makes an object of each sample and formats it anew at each scrape: with ten
thousand operators that have been called, a quarter of a million of them. Here a series has one text
a family; a scrape formats those of series that were called since the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.utils import floatToGoString

from opdispatch_server.metrics.call_counts import NOTHING, RUN_BOUNDS, Counts, Series
from opdispatch_wire.printable import printable_line

LABEL_LIMIT: Final = 200
"""The longest value of a label, in characters."""

QUEUE_PLACES: Final = (1, 3, 5, 7, 9, 11)
"""The bounds that times of waiting are shown by, as places in RUN_BOUNDS: of each decade one."""

_PIECE = 1 << 18
# Stands for the labels of a series, which have no control characters.
_LABELS = "\0"


class _Family(NamedTuple):
    """A metric family, and its name in its header lines for Prometheus' own format."""

    name: str
    kind: str
    about: str

    def header(self, *, openmetrics: bool) -> bytes:
        suffix = "_total" if self.kind == "counter" and not openmetrics else ""
        name = self.name + suffix
        return f"# HELP {name} {self.about}\n# TYPE {name} {self.kind}\n".encode()


_FAMILIES: Final = (
    _Family(
        "opdispatch_calls",
        "counter",
        "Calls whose kernels have run, by outcome: ok, error, or died with its interpreter.",
    ),
    _Family(
        "opdispatch_kernel_duration_seconds",
        "histogram",
        "How long kernels ran, with the calls that they made.",
    ),
    _Family(
        "opdispatch_queue_duration_seconds",
        "histogram",
        "How long calls waited in the daemon and in their interpreter.",
    ),
    _Family(
        "opdispatch_call_argument_bytes",
        "counter",
        "The bytes of the tensors that kernels were given by calls.",
    ),
    _Family(
        "opdispatch_call_result_bytes",
        "counter",
        "The bytes of the tensors that kernels have returned to calls.",
    ),
)


def _histogram(name: str, bounds: Iterator[float]) -> str:
    ends = [*map(floatToGoString, bounds), "+Inf"]
    buckets = "".join(f'{name}_bucket{{{_LABELS},le="{end}"}} %d\n' for end in ends)
    return f"{buckets}{name}_count{{{_LABELS}}} %d\n{name}_sum{{{_LABELS}}} %r\n"


_CALLS = "".join(
    f'opdispatch_calls_total{{{_LABELS},outcome="{outcome}"}} %d\n' for outcome in ("ok", "error")
)
_DIED = f'opdispatch_calls_total{{{_LABELS},outcome="died"}} %d\n'
_GIVEN, _RETURNED = (f"{family.name}_total{{{_LABELS}}} %d\n" for family in _FAMILIES[3:])
_RUNS = _histogram(_FAMILIES[1].name, iter(RUN_BOUNDS))
_QUEUES = _histogram(_FAMILIES[2].name, (RUN_BOUNDS[place] for place in QUEUE_PLACES))


class CallText:
    """Writes the metrics of calls. For one thread at a time."""

    def __init__(self) -> None:
        self._counts: dict[Series, Counts] = {}
        # Of each family, the text of each series, in the order of ``_counts``.
        self._texts: tuple[dict[Series, bytes], ...] = ({}, {}, {}, {}, {})
        self._labels: dict[Series, str] = {}
        self._series_of: dict[str, Series] = {}
        self._merges = False

    def write(self, calls: Mapping[Series, Counts], *, openmetrics: bool = False) -> list[bytes]:
        """Return the text in pieces of a sensible size."""
        known = self._counts
        if not known.keys() <= calls.keys():
            self.__init__()  # type: ignore[misc]
            known = self._counts
        # Counts that have not changed are the same objects: see ``SharedCounts.read``.
        changed = [
            (series, counts) for series, counts in calls.items() if known.get(series) is not counts
        ]
        for series, _ in changed:
            if series not in self._labels:
                self._name(series)
        known.update(changed)
        if self._merges:
            for series, counts in self._merged(calls).items():
                self._format(series, counts)
        else:
            for series, counts in changed:
                self._format(series, counts)
        pieces = []
        for family, texts in zip(_FAMILIES, self._texts, strict=True):
            pieces.append(family.header(openmetrics=openmetrics))
            pieces += _in_pieces(list(texts.values()))
        return pieces

    def _name(self, series: Series) -> None:
        labels = labels_of(series)
        self._labels[series] = labels
        # Names that are cut may be the same.
        self._merges |= self._series_of.setdefault(labels, series) != series

    def _merged(self, calls: Mapping[Series, Counts]) -> dict[Series, Counts]:
        found: dict[Series, Counts] = {}
        for series, counts in calls.items():
            first = self._series_of[self._labels[series]]
            found[first] = found.get(first, NOTHING) + counts
        return found

    def _format(self, series: Series, counts: Counts) -> None:
        labels = self._labels[series]
        ok, failed, run_ns, queue_ns, given, returned, run_buckets, queue_buckets, died = counts
        text = _CALLS % (ok, failed)
        if died:
            text += _DIED % died
        calls, runs, queues, *of_bytes = self._texts
        runs.pop(series, None)
        queues.pop(series, None)
        calls[series] = text.replace(_LABELS, labels).encode()
        for texts, line, count in zip(
            of_bytes, (_GIVEN, _RETURNED), (given, returned), strict=True
        ):
            texts[series] = (line % count).replace(_LABELS, labels).encode()
        if ok or failed:
            reached = (*accumulate(run_buckets),)
            text = _RUNS % (*reached, reached[-1], run_ns / 1e9)
            runs[series] = text.replace(_LABELS, labels).encode()
            reached = (*accumulate(queue_buckets),)
            shown = [reached[place] for place in QUEUE_PLACES]
            text = _QUEUES % (*shown, reached[-1], reached[-1], queue_ns / 1e9)
            queues[series] = text.replace(_LABELS, labels).encode()


def _in_pieces(texts: list[bytes]) -> Iterator[bytes]:
    if texts:
        step = max(_PIECE // len(texts[0]), 1)
        for at in range(0, len(texts), step):
            yield b"".join(texts[at : at + step])


def label_of(text: str) -> str:
    """Return a label's value: of names that users choose, one line of limited length."""
    return printable_line(text)[:LABEL_LIMIT]


def labels_of(series: Series) -> str:
    """Return the labels of a series as they are written."""
    return ",".join(
        f'{name}="{_escaped(label_of(value))}"'
        for name, value in zip(series._fields, series, strict=True)
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
