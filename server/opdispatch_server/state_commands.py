"""``opdispatch state``, where installations of before look for it."""

from opdispatch_server.commands import state

__all__ = ["state"]
