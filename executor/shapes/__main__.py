"""`python -m executor.shapes my.py:tasks` writes the works of a workload, for the planner."""

import argparse
import os
import sys

from executor.shapes import works_of
from profiles import console
from profiles.works import encode


def _works(arguments: argparse.Namespace) -> int:
    out = os.dup(1)
    os.dup2(2, 1)  # what the workload prints is no part of it
    data = encode(works_of(arguments.workload))
    with open(out, "wb") as file:
        file.write(data)
    return 0


if __name__ == "__main__":
    parser = console.Parser(prog="python -m executor.shapes")
    parser.add_argument("workload")
    parser.set_defaults(command=_works)
    sys.exit(console.run(parser, None))
