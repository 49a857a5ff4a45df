"""The server's two halves, the daemon and its interpreters, know nothing of each other."""

import subprocess
import sys

import pytest

LOADED = """
import sys
import {module}
print(*(name for name in sys.modules if name.startswith({unwanted!r})))
"""


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [("opdispatch_server.daemon", "opdispatch_server.worker")],
)
def test_a_process_that_imports_one_half_loads_nothing_of_the_other(module, unwanted):
    source = LOADED.format(module=module, unwanted=unwanted)
    output = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert output.split() == []
