"""NumPy and ml_dtypes put off until something of them is used, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waits import LONGEST_WAIT

BEGIN = """\
import sys
from opdispatch_server import deferred_numpy

def loaded():
    return [n for n in ("numpy._core", "ml_dtypes._ml_dtypes_ext") if n in sys.modules]
"""
DEFERRED = f"""\
{BEGIN}
deferred_numpy.defer()
import ml_dtypes
import numpy as np
import numpy
assert np is numpy is sys.modules["numpy"]
assert not loaded(), loaded()
"""


def run(code: str) -> None:
    command = (sys.executable, "-c", code)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "use",
    [
        "assert np.zeros(2).sum() == 0",
        "from numpy import zeros",
        "import numpy.random; assert np.random.rand() < 1",
        "assert np.bool_ is not bool; assert np.__version__",  # by its __getattr__, too
        "assert np.dtype(ml_dtypes.bfloat16).itemsize == 2",
        "assert 'ndarray' in vars(np)",
        "deferred_numpy.load(); deferred_numpy.load(); assert len(loaded()) == 2",
    ],
)
def test_deferred_numpy_is_the_module_itself_from_its_first_use_on(use: str):
    run(
        f"{DEFERRED}{use}\n"
        "assert loaded()[:1] == ['numpy._core']\n"
        "assert np is sys.modules['numpy'] and type(np) is type(sys)\n"
        "import copy, pickle\n"
        "assert pickle.loads(pickle.dumps(np.arange(3))).tolist() == [0, 1, 2]\n"
    )


def test_every_thread_gets_whole_modules():
    run(
        f"{DEFERRED}"
        "import threading\n"
        "found, begin = [], threading.Barrier(8)\n"
        "def look():\n"
        "    begin.wait()\n"
        "    found.append(np.dtype(ml_dtypes.bfloat16).itemsize + np.zeros(1).size)\n"
        "threads = [threading.Thread(target=look) for _ in range(8)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "assert found == [3] * 8, found\n"
    )


def test_loading_that_failed_is_tried_again():
    run(
        f"{DEFERRED}"
        "spec = np.__spec__\n"
        "run = spec.loader.exec_module\n"
        "def fail(module): raise MemoryError\n"
        "spec.loader.exec_module = fail\n"
        "for _ in range(2):\n"
        "    try: np.zeros\n"
        "    except MemoryError: pass\n"
        "    else: sys.exit('it was loaded')\n"
        "spec.loader.exec_module = run\n"
        "assert np.zeros(1).size == 1\n"
    )


def test_defer_ignores_loaded_and_missing_modules():
    run(
        f"{BEGIN}"
        "import numpy as np\n"
        "deferred_numpy.defer()\n"
        "assert np is sys.modules['numpy'] and type(np) is type(sys)\n"
    )
    run(
        f"{BEGIN}"
        "sys.path[:] = [each for each in sys.path if 'site-packages' not in each]\n"
        "deferred_numpy.defer()\n"
        "deferred_numpy.load()\n"
        "assert 'numpy' not in sys.modules\n"
    )
