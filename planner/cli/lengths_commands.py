"""The command about samples of every length: `lengths`."""

import argparse
import sys

import profiles
from planner.views import describe_lengths, shape_of
from profiles import lengths as files
from profiles.codec import check_target
from profiles.errors import FormatError


def show_lengths(options: argparse.Namespace) -> int:
    """Describe the lengths of all tasks of a profile that have some, and draw them."""
    if options.plot:
        from planner.charts import gantt

        check_target(options.plot, options.profile)
        gantt.check_name(options.plot)
    tasks = [task for task in profiles.load(options.profile).tasks if task.lengths]
    if not tasks:
        raise FormatError(
            f"{options.profile}: its tasks have samples of one length; give Task(lengths=...) and "
            "profile again"
        )
    shapes = [shape_of(task, files.load(options.profile, task)) for task in tasks]
    if options.plot:
        from planner.charts import lengths_chart

        gantt.save(lengths_chart.figure(shapes), options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    print("\n\n".join(map(describe_lengths, shapes)))
    return 0
