"""How long interpreters may take to follow."""

from __future__ import annotations

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.libraries.instructions import INSTRUCTION_TIMEOUT, instruction_timeout
from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_wire.v1 import interpreter_pb2 as pb


def test_an_instruction_for_a_large_library_may_take_longer():
    version = LibraryVersion("large", 1, 1, LibrarySource("large.py", "0"))
    assert instruction_timeout(version) == INSTRUCTION_TIMEOUT
    version.batch = pb.RegistrationBatch(registrations=[pb.Registration()] * 100_000)
    assert instruction_timeout(version) == INSTRUCTION_TIMEOUT + 100
