"""The command `build`: from profiles, corrections and run logs to a plan."""

import argparse
import json
import sys
import time

import plans
from planner.builder import build
from planner.inputs import read_problem
from planner.views import describe, summary
from profiles.codec import check_target

_ASKED = (
    "profile",
    "devices",
    "device_memory",
    "host_memory",
    "h2d",
    "d2h",
    "corrections",
    "after",
    "microbatch",
    "objective",
    "start",
    "deadline",
    "priority",
    "segment_steps",
    "link_groups",
    "disk_space",
)


def build_plan(options: argparse.Namespace) -> int:
    """Make, prove and write a plan."""
    check_target(options.output, *options.profile, *options.corrections, *options.after)
    problem = read_problem(**{name: vars(options)[name] for name in _ASKED})
    begun = time.monotonic()
    print(f"planning {len(problem.tasks)} task(s) on {problem.devices} device(s)", file=sys.stderr)
    plan = build(
        problem,
        policy=options.policy,
        seconds=options.time_limit,
        seed=options.seed,
        jobs=options.jobs,
    )
    plans.save(options.output, plan)
    seconds = time.monotonic() - begun
    if options.json:
        print(json.dumps(summary(plan) | {"build_seconds": round(seconds, 3)}, indent=1))
    else:
        print(describe(plan, rounds=False))
        print(f"wrote {options.output} in {seconds:.1f} s")
    return 0
