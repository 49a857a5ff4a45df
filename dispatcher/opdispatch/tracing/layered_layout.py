"""Where the boxes of a picture are: in layers, so that arrows lead down, and few of them cross.

After Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures" (1981): layers by the longest way, places for arrows in the layers that they pass, an
order in each layer by the mean of the neighbours, and then positions as near to the neighbours
as the distances allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SWEEPS = 8
_GAP = 24.0
_ROOM_FOR_ARROW = 8.0
# An arrow across more layers than that is drawn straight, or a long graph would be all arrows.
_MOST_LAYERS = 40


@dataclass(frozen=True, slots=True)
class Layout:
    """The middle of each box across the layers, its layer, and where each arrow passes."""

    centers: list[float]
    layers: list[int]
    ways: list[list[tuple[int, float]]]
    """For each arrow, the layers between its ends, and the positions there."""
    width: float


def lay_out(widths: Sequence[float], arrows: Sequence[tuple[int, int]]) -> Layout:
    """Boxes of these widths, in an order in which each arrow leads to a later one."""
    layers = _layers_of(len(widths), arrows)
    members: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for box, layer in enumerate(layers):
        members[layer].append(box)
    sizes = list(widths)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    passed: list[list[int]] = []
    for start, end in arrows:
        way = []
        if layers[end] - layers[start] <= _MOST_LAYERS:
            for layer in range(layers[start] + 1, layers[end]):
                way.append(len(sizes))
                members[layer].append(len(sizes))
                sizes.append(_ROOM_FOR_ARROW)
                above.append([])
                below.append([])
            for one, other in zip([start, *way], [*way, end], strict=True):
                below[one].append(other)
                above[other].append(one)
        passed.append(way)
    _order(members, above, below)
    positions = _positions(members, sizes, above, below)
    left = min((p - sizes[n] / 2 for n, p in enumerate(positions)), default=0.0)
    right = max((p + sizes[n] / 2 for n, p in enumerate(positions)), default=0.0)
    layer_of = {member: layer for layer, each in enumerate(members) for member in each}
    return Layout(
        [p - left for p in positions[: len(widths)]],
        layers,
        [[(layer_of[each], positions[each] - left) for each in way] for way in passed],
        right - left,
    )


def _layers_of(count: int, arrows: Sequence[tuple[int, int]]) -> list[int]:
    """A layer for each box; one that no arrow leads to is right above the first that needs it."""
    layers = [0] * count
    first_use: dict[int, int] = {}
    ends = {end for _, end in arrows}
    for start, end in sorted(arrows, key=lambda arrow: arrow[1]):
        layers[end] = max(layers[end], layers[start] + 1)
    for start, end in arrows:
        if start not in ends:
            first_use[start] = min(first_use.get(start, layers[end]), layers[end])
    for box, layer in first_use.items():
        layers[box] = layer - 1
    return layers


def _order(members: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Puts each layer in the order of the mean places of the neighbours."""
    places = {each: float(n) for layer in members for n, each in enumerate(layer)}
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for layer in members if sweep % 2 == 0 else reversed(members):
            means = {
                each: sum(places[n] for n in near) / len(near)
                if (near := neighbours[each])
                else places[each]
                for each in layer
            }
            layer.sort(key=means.__getitem__)
            for place, each in enumerate(layer):
                places[each] = float(place)


def _positions(
    members: list[list[int]],
    sizes: Sequence[float],
    above: list[list[int]],
    below: list[list[int]],
) -> list[float]:
    positions = [0.0] * len(sizes)
    for layer in members:
        _spread(layer, sizes, positions, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for layer in members if sweep % 2 == 0 else reversed(members):
            wanted = [
                sum(positions[n] for n in near) / len(near)
                if (near := neighbours[each])
                else positions[each]
                for each in layer
            ]
            _spread(layer, sizes, positions, wanted)
    return positions


def _spread(
    layer: Sequence[int], sizes: Sequence[float], positions: list[float], wanted: Sequence[float]
) -> None:
    """Positions in this order with room between them, with the least squares from the wanted ones.

    Less the room that comes before it, each position must be at least the one before: an isotonic
    regression, by pooling neighbours that are in the wrong order.
    """
    room, total = [], 0.0
    for place, each in enumerate(layer):
        if place:
            total += (sizes[layer[place - 1]] + sizes[each]) / 2 + _GAP
        room.append(total)
    pools: list[tuple[float, int]] = []
    for wish, before in zip(wanted, room, strict=True):
        mean, count = wish - before, 1
        while pools and pools[-1][0] >= mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    means = [mean for mean, count in pools for _ in range(count)]
    for each, mean, before in zip(layer, means, room, strict=True):
        positions[each] = mean + before
