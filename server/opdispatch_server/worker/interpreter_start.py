"""How the daemon starts interpreters: ``python -m opdispatch_server.worker.interpreter_start``.

All modules of an interpreter are imported before the garbage collector is enabled: there is nothing
to collect, and the objects need not be traversed again and again.
"""

from __future__ import annotations

import gc


def main() -> None:
    """Import everything, then run ``interpreter_process``."""
    gc.disable()
    from opdispatch_server.worker import interpreter_process

    gc.freeze()
    gc.enable()
    interpreter_process.main()


if __name__ == "__main__":
    main()
