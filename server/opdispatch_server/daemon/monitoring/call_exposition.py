"""The metrics of calls as text, formatted for many series at once.

prometheus-client creates an object for each sample and formats it: a quarter of a million objects
for ten thousand operators. Here the samples of a family are the rows of an array of bytes, with a
field for the labels and one for the number of each. All labels of a row are equally long, and so
are all numbers: these begin with zeros, which both formats allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
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
)
from opdispatch_wire.printable import printable_line

LABEL_LIMIT: Final = 200
"""The longest value of a label, in characters."""

QUEUE_PLACES: Final = (1, 3, 5, 7, 9, 11)
"""The bucket bounds of waiting times, as indices in RUN_BOUNDS: one per decade."""

Bytes = NDArray[np.uint8]
Piece = bytes | memoryview

_PIECE = 1 << 20
# Labels are padded to a multiple of this many characters.
_WIDTH = 16
# This many series texts are checked together; if one of them is not plain, each by itself.
_BATCH = 256
# Numbers have a multiple of four digits, which are looked up four at a time.
_FOUR = 4
_FOUR_DIGITS: Final = np.array([f"{n:04}" for n in range(10_000)], "S4").view(np.uint32)
# Times are in units of 10 ns: eight digits after the decimal point.
_NS = 10
_FRACTION = 8
_PER_SECOND = 10**_FRACTION


class Sample(NamedTuple):
    """A line of a family: the suffix of its name, and the label before those of the series."""

    name: str
    label: str = ""
    is_time: bool = False
    """Whether the number is in units of 10 ns, and shown in seconds."""


class Family(NamedTuple):
    """A metric family."""

    name: str
    kind: str
    about: str
    samples: Sequence[Sample]
    columns: Callable[[Numbers], Numbers]
    """Computes the numbers of the samples, one column each, from those of a table."""

    def header(self, *, openmetrics: bool) -> bytes:
        """Return the header lines."""
        suffix = "_total" if self.kind == "counter" and not openmetrics else ""
        kind = "untyped" if self.kind == "unknown" and not openmetrics else self.kind
        name = self.name + suffix
        return f"# HELP {name} {self.about}\n# TYPE {name} {kind}\n".encode()

    def write(self, labels: Bytes, numbers: Numbers) -> Iterator[memoryview]:
        """Yield the samples of series whose labels have equal lengths, in pieces."""
        heads = [
            f"{sample.name}{{{sample.label}{',' if sample.label else ''}".encode()
            for sample in self.samples
        ]
        counts = [sample.is_time for sample in self.samples].count(False)
        size = len(heads) * (max(map(len, heads)) + labels.shape[1] + 2 * _FOUR)
        step = max(_PIECE // size, 1)
        for first in range(0, len(labels), step):
            rows = slice(first, first + step)
            yield _lines(heads, labels[rows], self.columns(numbers[rows]), counts)


def _lines(heads: Sequence[bytes], labels: Bytes, columns: Numbers, counts: int) -> memoryview:
    """Return a line for each column of each row, all of equal length.

    The columns from ``counts`` on are times.
    """
    whole, times = _digits(columns[:, :counts]), _digits(columns[:, counts:], _FRACTION + 1)
    width = labels.shape[1]
    sizes = [whole.shape[2]] * counts + [times.shape[2] + 1] * (len(heads) - counts)
    end = width + max(len(head) + size for head, size in zip(heads, sizes, strict=True))
    point = end - 1 - _FRACTION
    blanks = [head.ljust(end, b"0") for head in heads[:counts]]
    blanks += [head.ljust(point, b"0") + b"." + b"0" * _FRACTION for head in heads[counts:]]
    text = np.empty((len(labels), len(heads), end + 1), np.uint8)
    text[:] = np.frombuffer(b"\n".join([*blanks, b""]), np.uint8).reshape(len(heads), -1)
    for column, head in enumerate(heads):
        text[:, column, len(head) : len(head) + width] = labels
    text[:, :counts, end - whole.shape[2] : end] = whole
    seconds = times.shape[2] - _FRACTION
    text[:, counts:, point - seconds : point] = times[..., :seconds]
    text[:, counts:, point + 1 : end] = times[..., seconds:]
    return text.reshape(-1).data


class CallExposition:
    """Writes the metrics of calls: families of series by labels. For one thread at a time."""

    def __init__(self, families: Sequence[Family], labels: Mapping[str, str]) -> None:
        """Take ``labels``, the label of each field of a series that has one."""
        self._families = families
        self._fields = labels
        self._texts: Sequence[bytes] = []
        # The series in the order of their rows.
        self._order: NDArray[np.intp] = np.zeros(0, np.intp)
        # Where in this order each row begins, if rows have several series: those with equal labels.
        self._starts: NDArray[np.intp] | None = None
        # The labels of rows, in blocks of equal lengths.
        self._blocks: list[Bytes] = []

    def write(self, calls: CallTable, *, openmetrics: bool = False) -> Iterator[Piece]:
        """Return the text in pieces of moderate size, each created on demand.

        Any thread may call this, and others may write meanwhile.
        """
        if self._texts != calls.texts:
            self._arrange(calls.texts)
        numbers = calls.numbers[self._order]
        if self._starts is not None:
            numbers = np.add.reduceat(numbers, self._starts)
        return self._pieces(self._blocks, numbers, openmetrics=openmetrics)

    def _pieces(
        self, blocks: Sequence[Bytes], numbers: Numbers, *, openmetrics: bool
    ) -> Iterator[Piece]:
        for family in self._families:
            yield family.header(openmetrics=openmetrics)
            first = 0
            for block in blocks:
                yield from family.write(block, numbers[first : first + len(block)])
                first += len(block)

    def _arrange(self, texts: Sequence[bytes]) -> None:
        """Order the series by the lengths of their labels, and equal labels together."""
        labels = labels_of(texts, self._fields)
        places = {label: place for place, label in enumerate(dict.fromkeys(labels))}
        widths = [-(len(label) // -_WIDTH) for label in places]
        rows = np.array(widths, np.intp).argsort(kind="stable")
        distinct = [*places]
        self._blocks = [
            _block([distinct[row] for row in alike], width * _WIDTH)
            for width, alike in groupby(rows.tolist(), widths.__getitem__)
        ]
        self._order, self._starts = rows, None
        if len(distinct) < len(labels):
            at = np.empty_like(rows)
            at[rows] = np.arange(len(rows))
            row_of_series = at[[places[label] for label in labels]]
            self._order = row_of_series.argsort(kind="stable")
            self._starts = np.searchsorted(row_of_series[self._order], np.arange(len(rows)))
        self._texts = texts


def _block(labels: Sequence[bytes], width: int) -> Bytes:
    """Return labels padded with the leading digits of their numbers."""
    block = np.array(labels, f"S{width}").view(np.uint8).reshape(-1, width)
    block[block == 0] = ord("0")
    return block


def _digits(numbers: Numbers, least: int = 1) -> Bytes:
    """Return the digits of numbers of any shape along a new last axis: ``least`` or more."""
    count = -(-max(len(str(numbers.max(initial=0))), least) // _FOUR)
    found = np.empty((*numbers.shape, count), np.uint32)
    # Division of 32-bit numbers takes half the time.
    rest: NDArray[Any] = numbers.astype(np.uint32) if count <= 2 else numbers
    base = rest.dtype.type(10**_FOUR)
    for place in reversed(range(1, count)):
        fours, rest = rest, rest // base
        found[..., place] = _FOUR_DIGITS[fours - rest * base]
    found[..., 0] = _FOUR_DIGITS[rest]
    return found.view(np.uint8)


def _histogram(name: str, bounds: Sequence[float]) -> list[Sample]:
    ends = [*map(floatToGoString, bounds), "+Inf"]
    buckets = [Sample(f"{name}_bucket", f'le="{end}"') for end in ends]
    return [*buckets, Sample(f"{name}_count"), Sample(f"{name}_sum", is_time=True)]


def _histogram_columns(buckets: Numbers, ns: Numbers) -> Numbers:
    """Return the numbers of a histogram's samples: cumulative buckets, and the sum."""
    return np.column_stack([buckets, buckets[:, -1], ns // np.uint64(_NS)])


def _run_columns(numbers: Numbers) -> Numbers:
    return _histogram_columns(numbers[:, RUN_COLUMNS].cumsum(axis=1), numbers[:, RUN_NS])


def _queue_columns(numbers: Numbers) -> Numbers:
    buckets = numbers[:, QUEUE_COLUMNS].cumsum(axis=1)[:, [*QUEUE_PLACES, -1]]
    return _histogram_columns(buckets, numbers[:, QUEUE_NS])


CALL_LABELS: Final = {field: field for field in Series._fields}

CALL_FAMILIES: Final = (
    Family(
        "opdispatch_calls",
        "counter",
        "Calls whose kernels have run, by outcome: ok, error, or died with its interpreter.",
        [
            Sample("opdispatch_calls_total", f'outcome="{outcome}"')
            for outcome in ("ok", "error", "died")
        ],
        itemgetter((slice(None), [OK, FAILED, DIED])),
    ),
    Family(
        "opdispatch_call_argument_bytes",
        "counter",
        "The bytes of the tensors that kernels were given by calls.",
        [Sample("opdispatch_call_argument_bytes_total")],
        itemgetter((slice(None), [ARGUMENT_BYTES])),
    ),
    Family(
        "opdispatch_call_result_bytes",
        "counter",
        "The bytes of the tensors that kernels have returned to calls.",
        [Sample("opdispatch_call_result_bytes_total")],
        itemgetter((slice(None), [RESULT_BYTES])),
    ),
    Family(
        "opdispatch_kernel_duration_seconds",
        "histogram",
        "How long kernels ran, with the calls that they made.",
        _histogram("opdispatch_kernel_duration_seconds", RUN_BOUNDS),
        _run_columns,
    ),
    Family(
        "opdispatch_queue_duration_seconds",
        "histogram",
        "How long calls waited in the daemon and in their interpreter.",
        _histogram("opdispatch_queue_duration_seconds", [RUN_BOUNDS[p] for p in QUEUE_PLACES]),
        _queue_columns,
    ),
)


def labels_of(texts: Sequence[bytes], fields: Mapping[str, str]) -> list[bytes]:
    """Return the labels of series by their texts, as written before the number.

    ``fields`` has the label of each field of a series that has one.
    """
    # For each series: the text before each value, the value, and finally the text after them.
    row = [text for label in fields.values() for text in (f'",{label}="', "")] + ['"} \n']
    row[0] = row[0].removeprefix('",')
    columns = [Series._fields.index(field) for field in fields]
    written: list[bytes] = []
    for first in range(0, len(texts), _BATCH):
        batch = texts[first : first + _BATCH]
        text = b"\n".join(batch).decode(errors="replace")
        values = text.split("\n")
        if max(map(len, batch)) > LABEL_LIMIT or not _is_plain(text.replace("\n", "")):
            values = [_escaped(label_of(value)) for value in values]
        pieces = row * len(batch)
        for at, column in enumerate(columns):
            pieces[2 * at + 1 :: len(row)] = values[column :: len(Series._fields)]
        written += "".join(pieces).encode().splitlines()
    return written


def _is_plain(text: str) -> bool:
    return text.isprintable() and "\\" not in text and '"' not in text


def label_of(text: str) -> str:
    """Return a label's value: a user-chosen name, as one line of limited length."""
    return printable_line(text)[:LABEL_LIMIT]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')
