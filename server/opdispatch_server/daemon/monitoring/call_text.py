"""The metrics of calls as text, made of many series at once.

prometheus-client makes an object of each sample and formats it: with ten thousand operators that
have been called, a quarter of a million of them. Here the samples of a family are the rows of an
array of bytes, with a field for the labels and one for the number of each. All labels of a row are
equally long, and so are all numbers: these begin with zeros, which both formats allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from prometheus_client.utils import floatToGoString

from opdispatch_server.metrics.call_counts import RUN_BOUNDS, Series
from opdispatch_server.metrics.call_table import (
    ARGUMENT_BYTES,
    DIED,
    FAILED,
    OK,
    QUEUE_COLUMNS,
    QUEUE_NS,
    RESULT_BYTES,
    RUN_COLUMNS,
    RUN_NS,
    CallTable,
    Numbers,
    add_at,
)
from opdispatch_wire.printable import printable_line

LABEL_LIMIT: Final = 200
"""The longest value of a label, in characters."""

QUEUE_PLACES: Final = (1, 3, 5, 7, 9, 11)
"""The bounds that times of waiting are shown by, as places in RUN_BOUNDS: of each decade one."""

Bytes = NDArray[np.uint8]
Piece = bytes | memoryview

_PIECE = 1 << 19
# Numbers have a multiple of four digits: each four are looked up.
_FOUR = 4
_FOUR_DIGITS: Final = np.array([f"{n:04}" for n in range(10_000)], "S4").view(np.uint32)
# Times are in units of 10 ns: eight digits behind the point.
_NS = 10
_FRACTION = 8
_PER_SECOND = 10**_FRACTION


class Sample(NamedTuple):
    """A line of a family: what is before its labels, and behind them; its number's column."""

    name: str
    column: int
    label: str = ""
    is_time: bool = False
    """The number is in units of 10 ns, and shown in seconds."""


class Family(NamedTuple):
    """A metric family; ``header_name`` is its name in header lines of Prometheus' own format."""

    name: str
    kind: str
    about: str
    samples: Sequence[Sample]

    def header(self, *, openmetrics: bool) -> bytes:
        """Return its first lines."""
        suffix = "_total" if self.kind == "counter" and not openmetrics else ""
        kind = "untyped" if self.kind == "unknown" and not openmetrics else self.kind
        name = self.name + suffix
        return f"# HELP {name} {self.about}\n# TYPE {name} {kind}\n".encode()

    def write(
        self, labels: Bytes, whole: Bytes, fractions: Bytes, times: Sequence[int]
    ) -> Iterator[memoryview]:
        """Yield the samples of series whose labels are equally long, in pieces.

        The digits of their numbers are those of ``whole``, by series and column, and behind the
        point those of ``fractions``, of the columns ``times``.
        """
        width, digits = labels.shape[1], whole.shape[2]
        row, places = b"", []
        for sample in self.samples:
            row += f"{sample.name}{{".encode()
            begins = len(row)
            row += b"0" * width + (f",{sample.label}}} " if sample.label else "} ").encode()
            places.append((sample, begins, len(row)))
            row += b"0" * digits + (b"." + b"0" * _FRACTION if sample.is_time else b"") + b"\n"
        step = max(_PIECE // len(row), 1)
        for first in range(0, len(labels), step):
            rows = slice(first, first + step)
            named = labels[rows]
            text = np.empty((len(named), len(row)), np.uint8)
            text[:] = np.frombuffer(row, np.uint8)
            for sample, begins, at in places:
                text[:, begins : begins + width] = named
                point = at + digits
                text[:, at:point] = whole[rows, sample.column]
                if sample.is_time:
                    fraction = fractions[rows, times.index(sample.column)]
                    text[:, point + 1 : point + 1 + _FRACTION] = fraction
            yield text.reshape(-1).data


class CallText:
    """Writes metrics of calls: families of series by labels. For one thread at a time.

    ``columns`` makes the numbers of a family's samples of those of a table.
    """

    def __init__(
        self,
        families: Sequence[Family],
        labels: Callable[[Series], str],
        columns: Callable[[Numbers], Numbers],
    ) -> None:
        self._families = families
        self._labels_of = labels
        self._columns = columns
        self._times = sorted({s.column for f in families for s in f.samples if s.is_time})
        self._labels: dict[Series, bytes] = {}
        self._series: Sequence[Series] = []
        # Where the numbers of a series go: of those with the same labels, to one row.
        self._rows: NDArray[np.intp] = np.zeros(0, np.intp)
        # The labels of rows, in blocks of equal lengths.
        self._blocks: list[Bytes] = []

    def write(self, calls: CallTable, *, openmetrics: bool = False) -> Iterator[Piece]:
        """Return the text in pieces of a sensible size, each of which is made when it is asked for.

        Any thread may ask, and others may write meanwhile.
        """
        if self._series != calls.series:
            self._arrange(calls.series)
        numbers = np.zeros((sum(map(len, self._blocks)), calls.numbers.shape[1]), np.uint64)
        add_at(numbers, self._rows, calls.numbers)
        columns = self._columns(numbers)
        fractions = _digits(columns[:, self._times] % np.uint64(_PER_SECOND), _FRACTION)
        columns[:, self._times] //= np.uint64(_PER_SECOND)
        most = len(str(columns.max(initial=0)))
        whole = _digits(columns, max(-(-most // _FOUR), 2) * _FOUR)
        return self._pieces(self._blocks, whole, fractions, openmetrics=openmetrics)

    def _pieces(
        self, blocks: Sequence[Bytes], whole: Bytes, fractions: Bytes, *, openmetrics: bool
    ) -> Iterator[Piece]:
        for family in self._families:
            yield family.header(openmetrics=openmetrics)
            first = 0
            for block in blocks:
                rows = slice(first, first + len(block))
                yield from family.write(block, whole[rows], fractions[rows], self._times)
                first += len(block)

    def _arrange(self, series: Sequence[Series]) -> None:
        """Give each series its row."""
        known, labels_of = self._labels, self._labels_of
        self._labels = {e: known[e] if e in known else labels_of(e).encode() for e in series}
        self._series = [*series]
        labels = sorted(dict.fromkeys(self._labels.values()), key=len)
        rows = {each: row for row, each in enumerate(labels)}
        self._rows = np.array([rows[self._labels[each]] for each in series], np.intp)
        self._blocks = [
            np.frombuffer(b"".join(alike), np.uint8).reshape(-1, width)
            for width, alike in groupby(labels, len)
        ]


def _digits(numbers: Numbers, count: int) -> Bytes:
    """Return the digits of numbers of any shape, ``count`` along a new last axis."""
    found = np.empty((*numbers.shape, count // _FOUR), np.uint32)
    # Those of 32 bits are divided in half the time.
    rest: NDArray[Any] = numbers.astype(np.uint32) if count <= 2 * _FOUR else numbers
    base = rest.dtype.type(10**_FOUR)
    for place in reversed(range(count // _FOUR)):
        fours, rest = rest, rest // base
        found[..., place] = _FOUR_DIGITS[fours - rest * base]
    return found.view(np.uint8)


def _histogram(name: str, bounds: Sequence[float], first: int) -> list[Sample]:
    """Return its samples, whose columns begin with ``first``."""
    ends = [*map(floatToGoString, bounds), "+Inf"]
    samples = [
        Sample(f"{name}_bucket", column, f'le="{end}"') for column, end in enumerate(ends, first)
    ]
    last = samples[-1].column
    return [*samples, Sample(f"{name}_count", last), Sample(f"{name}_sum", last + 1, is_time=True)]


_RUNS = 5
_QUEUES = _RUNS + len(RUN_BOUNDS) + 2
CALL_FAMILIES: Final = (
    Family(
        "opdispatch_calls",
        "counter",
        "Calls whose kernels have run, by outcome: ok, error, or died with its interpreter.",
        [
            Sample("opdispatch_calls_total", column, f'outcome="{outcome}"')
            for column, outcome in enumerate(("ok", "error", "died"))
        ],
    ),
    Family(
        "opdispatch_call_argument_bytes",
        "counter",
        "The bytes of the tensors that kernels were given by calls.",
        [Sample("opdispatch_call_argument_bytes_total", 3)],
    ),
    Family(
        "opdispatch_call_result_bytes",
        "counter",
        "The bytes of the tensors that kernels have returned to calls.",
        [Sample("opdispatch_call_result_bytes_total", 4)],
    ),
    Family(
        "opdispatch_kernel_duration_seconds",
        "histogram",
        "How long kernels ran, with the calls that they made.",
        _histogram("opdispatch_kernel_duration_seconds", RUN_BOUNDS, _RUNS),
    ),
    Family(
        "opdispatch_queue_duration_seconds",
        "histogram",
        "How long calls waited in the daemon and in their interpreter.",
        _histogram(
            "opdispatch_queue_duration_seconds", [RUN_BOUNDS[p] for p in QUEUE_PLACES], _QUEUES
        ),
    ),
)


def call_columns(numbers: Numbers) -> Numbers:
    """Return the numbers of the samples of CALL_FAMILIES."""
    plain = numbers[:, [OK, FAILED, DIED, ARGUMENT_BYTES, RESULT_BYTES]]
    runs = numbers[:, RUN_COLUMNS].cumsum(axis=1)
    queues = numbers[:, QUEUE_COLUMNS].cumsum(axis=1)[:, [*QUEUE_PLACES, -1]]
    times = numbers[:, [RUN_NS, QUEUE_NS]] // np.uint64(_NS)
    return np.hstack([plain, runs, times[:, :1], queues, times[:, 1:]])


def call_labels(series: Series) -> str:
    """Return the labels of a series as they are written."""
    operator, key, library, version = series
    text = f'operator="{operator}",key="{key}",library="{library}",version="{version}"'
    is_plain = len(text) <= LABEL_LIMIT and text.isprintable() and "\\" not in text
    if is_plain and text.count('"') == 2 * len(series):
        return text
    return labels_text(zip(series._fields, series, strict=True))


def label_of(text: str) -> str:
    """Return a label's value: of names that users choose, one line of limited length."""
    return printable_line(text)[:LABEL_LIMIT]


def labels_text(labels: Iterator[tuple[str, str]]) -> str:
    """Return labels and their values, which users may have chosen, as they are written."""
    return ",".join([f'{name}="{_escaped(label_of(value))}"' for name, value in labels])


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
