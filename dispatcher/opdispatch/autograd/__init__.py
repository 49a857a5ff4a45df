"""Reverse-mode derivatives: the graph that calls record, and the backward pass through it.

watch                what a task wants done with nodes: saved tensors packed, callers noted down
node                 a step of the backward pass, and the facts it needs of its inputs
autograd_meta        autograd state of a tensor, and of a view
variable             what a tensor knows of the graph: ``grad``, ``grad_fn``, version and others
variable_methods     what a tensor can do with that
view_nodes           the history of views that are written to
inplace_writes       in-place writes: which are refused, and the history they leave
hooks                functions that see gradients on the way
to_copy              a tensor's way to another device
remote_history       tensors whose history another process has
saved_tensor         tensors saved for the backward pass, which are checked when they are used
context              what users' functions keep
function             steps of the graph that are written by hand
function_node        what they leave behind
inference_tensor     tensors that are never part of a graph
anomaly_mode         finding the call whose backward pass failed
engine               ``backward`` and ``grad``: the backward pass
gradcheck            whether derivatives are right
graph                hooks for saved tensors, and edges

Mirrors ``torch/csrc/autograd``. The kernels that leave the graph behind are made in
``functionalities/autograd.py``, of the formulas that a library gives.
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
