"""Tracing: the calls of operators as a graph, which is shown, kept, run, and sent to a service.

From the bottom up::

    structure               lists, tuples and dicts with tensors in them
    unique_names            what values are called
    node                    what a graph consists of
    graph_data              the parts of a graph together
    graph_recorder          what one trace has seen so far
    dead_code               which calls matter
    graph_text, graph_code  graphs to read
    picture, graph_dot, graph_svg
                            graphs to look at
    replay                  graphs as functions
    graph                   the graph, which can be called
    tracer                  the trace: a block, or the call of a function
    graph_json, graph_file  graphs in files
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
