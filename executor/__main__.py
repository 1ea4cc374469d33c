"""`python -m executor`; leaves without waiting for threads that a failed run could not stop."""

import os
import sys

if __name__ == "__main__":
    try:
        from executor.cli import main  # which takes seconds, and may be interrupted

        code = main()
    except SystemExit as stop:  # argparse: help, or a usage error
        code = stop.code if isinstance(stop.code, int) else 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = 130
    print(end="", flush=True)
    print(end="", file=sys.stderr, flush=True)
    os._exit(code)
