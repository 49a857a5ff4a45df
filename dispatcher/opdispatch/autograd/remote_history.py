"""Tensors whose history is in another process, where the backward pass cannot continue.

Note [Histories elsewhere]
    Processes exchange elements but no graphs. A gradient computed through such a tensor would
    silently lack the contribution of the other process's graph, so an incomplete gradient is an
    error:

    - results of a call in another process have a ``CallElsewhere`` node with edges to the sent
    tensors; - a value that moves here, and was calculated where it comes from, has a
    ``LostHistory``. It has no edges, so whatever else has been elsewhere, too, may be a part of
    what was lost; - a leaf that moves is another leaf, under the same name. What was recorded here
    before it left has the one that it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from opdispatch.autograd.node import Node, Origin
from opdispatch.autograd.variable import Variable, edge_of, facts_of, meta_of
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import is_grad_enabled


class LostHistory(Node):
    """Node in place of the history that a value has in the process it came from."""

    def __init__(self, origin: Origin) -> None:
        super().__init__((), ())
        self.origin = origin

    @property
    def name(self) -> str:
        """Its name."""
        return "LostHistory"

    def apply(self, grads: list[Any]) -> NoReturn:
        """Raise AutogradError."""
        raise self.error()

    def error(self) -> AutogradError:
        """Return the error of a backward pass that reaches the lost history."""
        place = "" if self.origin is None else self.origin.place
        return AutogradError(
            f"the backward pass reaches a value that came from {place}, and has left its history "
            "there: gradients would lack what that adds",
            hint="have all calls of one graph made in one place, or detach the value",
        )


class CallElsewhere(Node):
    """Node of a call that ran in another process, which has recorded it."""

    def __init__(self, place: str, given: list[Any], num_results: int) -> None:
        super().__init__(
            [edge_of(each) for each in given], [facts_of(each) for each in given], num_results
        )
        self._place = place

    @property
    def name(self) -> str:
        """Its name."""
        return "CallElsewhere"

    def apply(self, grads: list[Any]) -> NoReturn:
        """Raise AutogradError."""
        raise AutogradError(
            f"the backward pass reaches a call that was made in {self._place}, from where no "
            "gradient comes back",
            hint="have all calls of one graph made in one place, or detach its result",
        )


def has_history(value: Any) -> bool:
    """Return whether a value is the result of recorded calls."""
    return isinstance(value, Variable) and value.requires_grad and not value.is_leaf


def name_leaf(value: Any, name: bytes) -> None:
    """Set the cross-process name of a value if it is a leaf that requires gradients."""
    if isinstance(value, Variable) and value.requires_grad and value.is_leaf:
        _set_origin(value, Origin(name, ""))


def arrive(value: Any, origin: Origin, *, has_history: bool) -> None:
    """Set the history of a received value.

    ``has_history`` tells whether recorded calls made it in the process it comes from.
    """
    if not isinstance(value, Variable) or not value.requires_grad:
        return
    if has_history:
        meta_of(value).edge = (LostHistory(origin), 0)
    else:
        _set_origin(value, origin)


def note_call(place: str, arguments: Iterable[Any], results: Iterable[Any]) -> None:
    """Record ``results`` as results of a call with ``arguments`` in another process."""
    made = [each for each in _variables_in(results) if each.is_leaf]
    if not made or not is_grad_enabled():
        return
    given = _variables_in(arguments)
    known = {id(each) for each in given}
    made = [each for each in made if id(each) not in known]
    if made and given:
        node = CallElsewhere(place, given, len(made))
        for number, each in enumerate(made):
            meta_of(each).edge = (node, number)


def check_complete(wanted: Iterable[Node], reachable: Iterable[Node]) -> None:
    """Raise AutogradError if gradients of ``wanted`` may lack contributions of another process.

    See Note [Histories elsewhere].
    """
    came = {node: node.origin for node in wanted if node.origin is not None and node.origin.place}
    if not came:
        return
    names = {origin.name: origin for origin in came.values()}
    for node in reachable:
        if isinstance(node, LostHistory) and came.keys() - {node}:
            raise node.error()
        if node.origin is not None and node not in came and node.origin.name in names:
            raise AutogradError(
                f"a gradient is asked for of a value that has been in "
                f"{names[node.origin.name].place} since it was used here: it would lack what "
                "came of that use",
                hint="have all calls of one graph made in one place",
            )


def _set_origin(value: Any, origin: Origin) -> None:
    edge = edge_of(value)
    if edge is not None:  # a view made under no_grad receives no gradient
        edge[0].origin = origin


def _variables_in(values: Iterable[Any]) -> list[Any]:
    return [each for each in _flat(values) if isinstance(each, Variable) and each.requires_grad]


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value
