"""Environments of interpreters: made on disk for what a library needs, and entered.

library_home            what a library needs: packages, a Python, interpreters of its own
import_source           what a version of a library is imported from
script_metadata         what its source says of that, within limits of size and nesting
store                   those on disk, one for each set of requirements
build                   making one, with uv, or else with venv and pip
interpreter_packages    which packages of ours go with an interpreter, and where they are
"""
