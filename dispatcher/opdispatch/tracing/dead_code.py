"""Which calls of a graph matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdispatch.tracing.node import Node, Source, Value, values_in

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData


def live_nodes(graph: GraphData) -> list[int]:
    """Return the numbers of the calls that something depends on, in order.

    Values that may share memory, as schemas say or the trace has seen, are one storage. A call that
    writes to a storage matters if the storage is an input's or a constant's, or any value of it is
    used by what matters, be it before: what is used may be a view.
    """
    storages = _Storages(graph)
    live: set[int] = set()
    touched: set[object] = set()
    waiting: list[Value] = list(values_in(graph.outputs))
    writers: dict[object, list[int]] = {}

    def keep(number: int) -> None:
        if number not in live:
            live.add(number)
            waiting.extend(graph.nodes[number].uses)

    for number, node in enumerate(graph.nodes):
        written = [storages.of(value) for value in node.written]
        for storage in written:
            writers.setdefault(storage, []).append(number)
        if node.has_side_effects or not storages.outside.isdisjoint(written):
            keep(number)
    while waiting:
        value = waiting.pop()
        if value.source is Source.NODE:
            keep(value.number)
        storage = storages.of(value)
        if storage not in touched:
            touched.add(storage)
            for number in writers.get(storage, ()):
                keep(number)
    return sorted(live)


class _Storages:
    """Sets of values that may share memory, each known by one of its members.

    What one call returns is one value here, and so are the items of a list.
    """

    def __init__(self, graph: GraphData) -> None:
        self._parents: dict[tuple[Source, int], tuple[Source, int]] = {}
        for number, node in enumerate(graph.nodes):
            self._join(number, node)
        owners = [
            *(Value(Source.INPUT, n) for n in range(len(graph.inputs))),
            *(Value(Source.CONSTANT, n) for n in range(len(graph.constants))),
        ]
        self.outside = {self.of(value) for value in owners}
        """Those that exist without the graph."""

    def of(self, value: Value) -> tuple[Source, int]:
        """Return the storage of a value."""
        return self._root((value.source, value.number))

    def _join(self, number: int, node: Node) -> None:
        if node.is_aliasing:
            for value in node.aliased:
                self._parents[self._root((Source.NODE, number))] = self.of(value)

    def _root(self, member: tuple[Source, int]) -> tuple[Source, int]:
        parents, path = self._parents, []
        while (parent := parents.get(member)) is not None and parent != member:
            path.append(member)
            member = parent
        for each in path:  # so that chains of views stay short
            parents[each] = member
        return member
