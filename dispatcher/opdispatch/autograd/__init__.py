"""Reverse-mode automatic differentiation: the recorded graph and the backward pass.

recording_state      what a task adds to each recorded node: packed tensors, its traceback
node                 a node of the graph, and the metadata of its inputs
autograd_meta        the metadata that holds this state for tensors and views
variable             the autograd state of a tensor: ``grad``, ``grad_fn``, version and others
variable_methods     the tensor methods that use it
view_nodes           nodes for writes to views and their bases
inplace_writes       in-place writes: checks, and the update of the history
hooks                calls of hooks on gradients
to_copy              differentiable moves to another device or layout
remote_history       tensors whose history is in another process
saved_tensor         tensors saved for the backward pass, with version checks
context              ``ctx`` of user-defined backward functions
function             ``Function``, user-defined differentiable functions
function_node        their nodes
inference_tensor     tensors that are never part of a graph
anomaly_mode         find the forward call whose backward pass failed
engine               ``backward`` and ``grad``: the backward pass
gradcheck            check derivatives against finite differences
graph                hooks for saved tensors, and edges

Mirrors ``torch/csrc/autograd``. The kernels that record the graph are made in
``functionalities/autograd.py`` from the derivative formulas that a library registers.
"""

from __future__ import annotations

from opdispatch.autograd import graph
from opdispatch.autograd.anomaly_mode import (
    detect_anomaly,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from opdispatch.autograd.engine import backward, grad
from opdispatch.autograd.function import Function
from opdispatch.autograd.gradcheck import gradcheck, gradgradcheck
from opdispatch.autograd.node import Node
from opdispatch.autograd.variable import Variable

__all__ = [
    "Function",
    "Node",
    "Variable",
    "backward",
    "detect_anomaly",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "is_anomaly_check_nan_enabled",
    "is_anomaly_enabled",
    "set_detect_anomaly",
]
