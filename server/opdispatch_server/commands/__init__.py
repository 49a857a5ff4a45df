"""The commands of the server, which use both halves; the command line finds them by name.

running              ``opdispatch serve`` and ``opdispatch worker``
options              their options, with help
access_options       their options for access control
configuration_file   reads their options from a file
config               ``opdispatch config``
state_actions        ``opdispatch state``
token_actions        ``opdispatch token``
certs                ``opdispatch certs``
"""
