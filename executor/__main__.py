"""`python -m executor`; leaves without waiting for threads that a failed run could not stop."""

import os
import sys

from executor.cli import main

if __name__ == "__main__":
    try:
        code = main()
    except SystemExit as stop:  # argparse: help, or a usage error
        code = stop.code if isinstance(stop.code, int) else 2
    print(end="", flush=True)
    print(end="", file=sys.stderr, flush=True)
    os._exit(code)
