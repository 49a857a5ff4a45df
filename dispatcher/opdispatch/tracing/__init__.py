"""Tracing: record operator calls as a graph that can be displayed, saved, run, and sent to a
service.

From the bottom up::

    pytree                  lists, tuples and dicts with tensors in them
    unique_names            names of values
    node                    nodes and values of a graph
    graph_data              base of ``Graph``: its nodes and values
    graph_recorder          state of one trace
    dead_code               dead-code elimination
    graph_text, graph_code  text and Python code of graphs
    picture, graph_dot, graph_svg
                            drawings of graphs
    replay                  graphs compiled to Python functions
    graph                   the callable graph
    tracer                  ``Tracer`` and ``trace``
    graph_json, graph_file  saving and loading of graphs
"""

from opdispatch.tracing.graph import Graph
from opdispatch.tracing.graph_file import load_graph, save_graph
from opdispatch.tracing.node import Constant, Input, Node, Parameter, Source, TensorFacts, Value
from opdispatch.tracing.tracer import Tracer, trace

__all__ = [
    "Constant",
    "Graph",
    "Input",
    "Node",
    "Parameter",
    "Source",
    "TensorFacts",
    "Tracer",
    "Value",
    "load_graph",
    "save_graph",
    "trace",
]
