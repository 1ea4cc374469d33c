"""`show --steps`: how long every step of samples with lengths is, and at least."""

import argparse
import json
import sys
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from planner.cli.jitter_commands import profiles_of
from planner.inputs import Kind
from planner.sequences import Asked, Step, steps_of
from planner.views import describe_steps, steps_json
from plans import Plan
from plans.samples import open_table, table_path
from plans.schema import Task
from profiles import lengths
from profiles.codec import check_target
from profiles.errors import FormatError
from profiles.schema import Profile


def show_steps(plan: Plan, options: argparse.Namespace) -> int:
    """Print the steps of every task with lengths, and draw them."""
    if options.plot:
        from planner.charts import gantt

        check_target(options.plot, options.plan, *options.profile)
        gantt.check_name(options.plot)
    tasks = [task for task in plan.tasks if task.lengths]
    if not tasks:
        raise FormatError(f"{options.plan}: no task has samples of several lengths; see --at")
    (profile,) = profiles_of(plan, options.profile)
    found = {task.name: _steps(plan, task, profile, options) for task in tasks}
    if options.plot:
        from planner.charts import gantt, steps_chart

        pairs = {name: [(one.us, one.bound_us) for one in own] for name, own in found.items()}
        gantt.save(steps_chart.figure(pairs), options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    if options.json:
        print(json.dumps({name: steps_json(own) for name, own in found.items()}, indent=1))
    else:
        print("\n\n".join(describe_steps(name, own) for name, own in found.items()))
    return 0


def _steps(plan: Plan, task: Task, profile: Profile, options: argparse.Namespace) -> Sequence[Step]:
    """The steps of a task, by the table beside the plan and the lengths beside the profile."""
    (path,) = options.profile
    kind = Kind.of("", profile, len(plan.devices), None)
    measured = next(one for one in kind.tasks if one.name == task.name)
    asked = Asked(measured, np.asarray(lengths.load(path, measured)), kind, 0, task.done)
    rows = steps_of(plan, asked, open_table(table_path(options.plan, task.name), task.batch))
    return list(tqdm(rows, total=task.steps, unit="step", disable=None, file=sys.stderr))
