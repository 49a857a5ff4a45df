"""Listeners to operators that are registered and deregistered.

Mirrors ``OpRegistrationListener`` of ``ATen/core/dispatch/Dispatcher.h``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from opdispatch.schema.function_schema import OperatorName

LOG = logging.getLogger("opdispatch")


class RegistrationListener(Protocol):
    """A listener for operators that are defined, and for those about to lose their definition.

    Both methods are called with the registration mutex held, so that their order is the order of
    the changes: they must be quick, must not wait for another thread, and must not register. Their
    errors are logged.
    """

    def on_operator_registered(self, name: OperatorName) -> None:
        """Handle a definition: the operator can be called from now on.

        Also called when it becomes the last of several overloads because it was redefined.
        """

    def on_operator_deregistered(self, name: OperatorName) -> None:
        """Handle a definition's removal: the operator can still be called, but not for long."""


def tell(event: Callable[[OperatorName], None], name: OperatorName) -> None:
    """Call a listener, whose errors must not stop a publication half-way."""
    try:
        event(name)
    except Exception:
        LOG.exception("a registration listener failed at %s", name)
