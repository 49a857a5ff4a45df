"""The name of an environment, by what it is made of."""

from __future__ import annotations

import subprocess
import sys
import sysconfig

from opdispatch_server.daemon.environments.interpreter_packages import ABI
from tests.waits import LONGEST_WAIT

_RACE = """
import sys, threading
from opdispatch_server.daemon.environments.store import find_key
from opdispatch_server.daemon.environments.library_home import LibraryHome

sys.setswitchinterval(1e-6)
start, keys = threading.Barrier(16), set()

def ask():
    start.wait()
    keys.add(find_key(LibraryHome(("tinypack",))))

threads = [threading.Thread(target=ask) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(keys))
"""


def test_threads_that_are_the_first_to_ask_get_one_name():
    done = subprocess.run(
        [sys.executable, "-c", _RACE], capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_binary_interface_is_called_as_sysconfig_calls_it():
    assert sysconfig.get_config_var("SOABI") == ABI
