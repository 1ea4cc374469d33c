"""`python -m planner`."""

import sys

if __name__ == "__main__":
    try:
        from planner.cli.parser import main  # which takes a moment, and may be interrupted

        code = main()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        code = 130
    raise SystemExit(code)
