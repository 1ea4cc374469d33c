"""The command `build`: from profiles, corrections and run logs to a plan."""

import argparse
import json
import sys
import time

import plans
from planner.builder import build
from planner.inputs import options_of, read_problem
from planner.views import describe, summary
from plans import runlog
from profiles.codec import check_target


def build_plan(options: argparse.Namespace) -> int:
    """Make, prove and write a plan."""
    logs = [str(log) for run in options.after for log in runlog.files(run)]
    check_target(options.output, *options.profile, *options.corrections, *logs)
    problem = read_problem(options.profile, options_of(options))
    begun = time.monotonic()
    print(f"planning {len(problem.tasks)} task(s) on {problem.devices} device(s)", file=sys.stderr)
    plan = build(
        problem,
        policy=options.policy,
        seconds=options.time_limit,
        seed=options.seed,
        jobs=options.jobs,
        output=options.output,
    )
    if problem.order != "auto" and all(program.devices == 1 for program in plan.programs):
        print(f"--order {problem.order}: no task is on several devices", file=sys.stderr)
    plans.save(options.output, plan)
    seconds = time.monotonic() - begun
    if options.json:
        print(json.dumps(summary(plan) | {"build_seconds": round(seconds, 3)}, indent=1))
    else:
        print(describe(plan, rounds=False))
        print(f"wrote {options.output} in {seconds:.1f} s")
    return 0
