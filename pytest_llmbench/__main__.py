"""`python -m pytest_llmbench` is the command `llmbench`."""

import sys

from pytest_llmbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
