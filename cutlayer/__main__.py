"""`python -m cutlayer`."""

import sys

from cutlayer.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
