"""The command `gantry`: all commands of both packages by one name.

    gantry train     profile, plan, check and run a workload in one go
    gantry COMMAND   of the executor: profile, run, tune; of the planner: build, book, check, show,
                     compare, report, export, estimate, sweep, survive

Nothing is loaded here for a command: it begins as `python -m planner` or `python -m executor` do.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from profiles import console, training

OF = {
    "executor": ("profile", "run", "tune"),
    "planner": (
        "build",
        "book",
        "check",
        "show",
        "compare",
        "report",
        "export",
        "estimate",
        "sweep",
        "survive",
    ),
}
"""The commands of each package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Become the command that is named; the exit code where there is none."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if words else 2
    if words[0] == "train":
        return training.main(words[1:], become)
    for package, commands in OF.items():
        if words[0] in commands:
            become(package, words)
    return console.fail(f"there is no command {words[0]!r}; see gantry --help", 2)


def become(package: str, words: Sequence[str]) -> NoReturn:
    """Go on as `python -m PACKAGE WORDS`."""
    sys.stdout.flush(), sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", package, *words])


if __name__ == "__main__":
    sys.exit(main())
