"""Named tuples, as the results of an operator whose schema names several returns.

``minmax(Tensor x) -> (Tensor least, Tensor greatest)`` returns a named tuple. As
``torch.return_types`` are, it is a tuple in every other respect.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from opdispatch.schema.function_schema import FunctionSchema

_NAMES = "_result_names"  # the class attribute; field names do not begin with an underscore


def result_names(schema: FunctionSchema) -> tuple[str, ...]:
    """Return the names of the returns; () unless there are several and all have names."""
    names = tuple(each.name for each in schema.returns)
    return names if len(names) > 1 and all(names) and not schema.is_varret else ()


def result_class(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Return the class for results with these names, shared by all schemas; ``tuple`` for ()."""
    return _named_class(names) if names else tuple


def names_of_results(value: Any) -> tuple[str, ...]:
    """Return the names in an operator's result; () if it has none."""
    names: tuple[str, ...] = getattr(type(value), _NAMES, ())
    return names


@lru_cache(maxsize=1024)
def _named_class(names: tuple[str, ...]) -> type[tuple[Any, ...]]:
    # The names come from a schema. One that is not a valid attribute, such as a keyword of Python,
    # becomes ``_0``.
    base = namedtuple("Results", names, rename=True)  # type: ignore[misc]

    def reduce(self: tuple[Any, ...]) -> tuple[Any, ...]:
        return make_results, (names, tuple(self))

    members = {"__slots__": (), "__reduce__": reduce, "__module__": __name__, _NAMES: names}
    return type("Results", (base,), members)


def make_results(names: tuple[str, ...], values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values as a tuple with these names."""
    return tuple.__new__(result_class(names), values)
