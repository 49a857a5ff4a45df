"""Python environments of interpreters, built on disk for what a library needs.

library_home            a library's needs: packages, a Python, interpreters of its own
import_source           the content that a version of a library is imported from
script_metadata         the needs stated in its source, within limits of size and nesting
store                   the environments on disk, one for each set of requirements
build                   builds one, with uv, or else with venv and pip
interpreter_packages    the packages that an interpreter needs, and where they are
"""
