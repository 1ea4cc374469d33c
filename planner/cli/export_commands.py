"""The command that writes a plan for another system: `export`."""

import argparse
import sys
from pathlib import Path

import plans
from planner.exporting import schedule
from profiles.codec import check_target, write_atomic


def export_plan(options: argparse.Namespace) -> int:
    """Write a sound plan's schedule and stages into a folder."""
    folder = Path(options.output)
    plan = plans.load(options.plan)
    plans.prove(plan)  # what is not sound here is not there either
    files = {folder / name: data for name, data in schedule(plan).files().items()}
    for path in files:
        check_target(path, options.plan)
    for path, data in files.items():
        write_atomic(path, data)
        print(f"wrote {path}", file=sys.stderr)
    return 0
