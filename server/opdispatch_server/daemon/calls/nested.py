"""Calls that kernels make through the daemon: their authorization, depth, deadline and number."""

from __future__ import annotations

import secrets
from typing import Final

from opdispatch_server.call_context import MAX_DEPTH, RUN_BYTES, CallContext
from opdispatch_server.nested_time import NestedTime

NESTED_CALLS_PER_INTERPRETER: Final = 1024
"""The most nested calls that one interpreter runs at a time. They take no slot."""


class RunningKernel:
    """A running kernel, as seen by the calls that it makes."""

    def __init__(self, operator: str, depth: int = 0) -> None:
        self.number = secrets.randbits(8 * RUN_BYTES)
        self.operator = operator
        self.depth = depth
        self.is_abandoned = False  # whether its caller has stopped waiting
        self.nested_calls = NestedTime()


def context_of_call(context: CallContext, parent: RunningKernel | None) -> CallContext:
    """Return the context of a call by the kernel of ``parent``, or by a client.

    Nothing else that the sender claims about the call is trusted.
    """
    depth = min(parent.depth + 1, MAX_DEPTH) if parent is not None else 0
    return CallContext(context.deadline, depth, tensors=context.tensors)
