"""A call enters few Python functions: a figure that no other load of the machine moves."""

from __future__ import annotations

from pathlib import Path

import opdispatch_client as oc
from tests.bench.functions_entered import measure

WORKERS = 1
MOST_IN_CLIENT = 26
MOST_IN_INTERPRETER = 30


def test_a_direct_call_enters_few_functions_on_either_side(session: oc.Session, tmp_path: Path):
    client, interpreter = measure(session, tmp_path)
    assert client.total() <= MOST_IN_CLIENT, client.most_common()
    assert interpreter.total() <= MOST_IN_INTERPRETER, interpreter.most_common()
