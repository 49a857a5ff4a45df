"""The commands of the server: they know both halves, and the command line finds them by name.

running         ``opdispatch serve`` and ``opdispatch worker``
options         their options, each with its help
state_actions   ``opdispatch state``
"""

from opdispatch_server.commands.running import serve, worker
from opdispatch_server.commands.state_actions import state

__all__ = ["serve", "state", "worker"]
