"""The live differential run: PyTorch and opdispatch side by side, from a fresh random seed.

    python tests/conformance/live.py [PYTEST ARGUMENTS]

needs torch and the test suite's own requirements; ``make conformance`` sets both up. Every
recorder records ten times as much as the golden files hold in a folder that is thrown away, and
the tests replay that. Those that call PyTorch themselves, or take arrays of it and JAX, run beside
them. The seed is printed: OPDISPATCH_CONFORMANCE_SEED repeats a run.
"""

import os
import secrets
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
FOREIGN_ARRAYS = HERE.parent / "unit" / "test_dlpack_import.py"


def main() -> int:
    seed = os.environ.get("OPDISPATCH_CONFORMANCE_SEED") or str(secrets.randbelow(10**9))
    scale = os.environ.get("OPDISPATCH_CONFORMANCE_SCALE") or "10"
    repeat = f"OPDISPATCH_CONFORMANCE_SEED={seed} OPDISPATCH_CONFORMANCE_SCALE={scale}"
    print(f"seed {seed}; {repeat} repeats this run", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OPDISPATCH_CONFORMANCE_GOLDEN": folder,
            "OPDISPATCH_CONFORMANCE_SEED": seed,
            "OPDISPATCH_CONFORMANCE_SCALE": scale,
        }

        def record(recorder: Path) -> None:
            subprocess.run([sys.executable, str(recorder)], env=environment, check=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(record, sorted(HERE.glob("record_*.py"))))
        pytest = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses", "8"]
        command = [*pytest, str(HERE), str(FOREIGN_ARRAYS), *sys.argv[1:]]
        status = subprocess.run(command, env=environment, check=False).returncode
    print(f"{'failed' if status else 'passed'}: {repeat}")
    return status


if __name__ == "__main__":
    sys.exit(main())
