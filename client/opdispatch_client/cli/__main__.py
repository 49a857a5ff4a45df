"""``python -m opdispatch_client.cli``: the same as ``opdispatch``."""

import sys

from opdispatch_client.cli import main

if __name__ == "__main__":
    sys.exit(main())
