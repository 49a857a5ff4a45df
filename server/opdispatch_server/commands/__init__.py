"""The commands of the server: they know both halves, and the command line finds them by name.

running              ``opdispatch serve`` and ``opdispatch worker``
options              their options, each with its help
access_options       those about who may do what
configuration_file   their options from a file
config               ``opdispatch config``
state_actions        ``opdispatch state``
token_actions        ``opdispatch token``
certs                ``opdispatch certs``
"""
