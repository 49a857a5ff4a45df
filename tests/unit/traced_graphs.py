"""Common parts of tests of traces."""

import numpy as np

from opdispatch import no_grad

X = np.arange(6.0).reshape(2, 3)


def names(graph):
    """The operators that a graph calls, without their namespace and overload."""
    return [node.operator.partition("::")[2].partition(".")[0] for node in graph.nodes]


def equal(one, other):
    """Whether two results have the same structure, and the same numbers."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if not hasattr(one, "shape"):
        return one == other
    with no_grad():
        return one.dtype == other.dtype and np.array_equal(np.asarray(one), np.asarray(other))
