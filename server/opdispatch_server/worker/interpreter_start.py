"""How the daemon starts interpreters: ``python -m opdispatch_server.worker.interpreter_start``.

All that an interpreter consists of is imported before the garbage collector is switched on: there
is nothing to collect then, and what there is need not be gone through again and again.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Import everything, then is ``interpreter_process``."""
    gc.disable()
    from opdispatch_server.worker import interpreter_process

    gc.freeze()
    gc.enable()
    interpreter_process.main()


if __name__ == "__main__":
    main()
