"""``python -m ganger`` is the command ``ganger``."""

import sys

from ganger.cli import main

if __name__ == "__main__":
    sys.exit(main())
