"""Dead-code elimination for graphs with in-place writes and views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdispatch.tracing.node import Node, Source, Value, values_in

if TYPE_CHECKING:
    from opdispatch.tracing.graph_data import GraphData


def live_nodes(graph: GraphData) -> list[int]:
    """Return the indices of the live calls, in order.

    Values that may share memory, by their schemas or as observed in the trace, form one storage. A
    call that writes to a storage is live if the storage belongs to an input or constant, or if a
    live call uses any value of it, also an earlier one, since that value may be a view.
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
    """Disjoint sets of values that may share memory (union-find).

    All results of one call count as one value here, and so do the elements of a list.
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
        """Storages of inputs and constants, which exist outside the graph."""

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
        for each in path:  # path compression
            parents[each] = member
        return member
