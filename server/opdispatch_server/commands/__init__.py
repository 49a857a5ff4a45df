"""The commands of the server: they know both halves, and the command line finds them by name.

running              ``opdispatch serve`` and ``opdispatch worker``
options              their options, each with its help
configuration_file   their options from a file
config               ``opdispatch config``
state_actions        ``opdispatch state``
token_actions        ``opdispatch token``
certs                ``opdispatch certs``
"""

from opdispatch_server.commands.certs import certs
from opdispatch_server.commands.config import config
from opdispatch_server.commands.running import serve, worker
from opdispatch_server.commands.state_actions import state
from opdispatch_server.commands.token_actions import token

__all__ = ["certs", "config", "serve", "state", "token", "worker"]
