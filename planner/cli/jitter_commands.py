"""`show --jitter`: how long steps are when ops take now more, now less time."""

import argparse
import json
import sys
from collections.abc import Sequence

import profiles
from planner.jitter import Jitter, jitter, spreads
from planner.views import describe_jitter, jitter_json, known_task
from plans import Plan
from plans.schema import Program
from profiles.codec import read_bytes, sha256
from profiles.errors import FormatError
from profiles.schema import Profile

_MOST = 12  # programs


def show_jitter(plan: Plan, options: argparse.Namespace) -> int:
    """Print quantiles of the steps of a task's programs, or of those that run longest."""
    known_task(plan, options.task)
    kinds, programs = profiles_of(plan, options.profile), _longest(plan, options.task)
    if any(profile.estimated for profile in kinds):
        print("the profile is estimated: it measured no spread of times", file=sys.stderr)
    found = {one.name: _jitter(plan, one, kinds) for one in programs}
    if options.json:
        print(json.dumps(jitter_json(found), indent=1))
    else:
        print(describe_jitter(plan, found))
    return 0


def profiles_of(plan: Plan, paths: Sequence[str]) -> list[Profile]:
    """The profiles of the plan's kinds of devices, in their order; FormatError for any other, and
    where one is missing."""
    read = {}
    roles = {digest: role for role, digest in plan.inputs.items() if role.startswith("profile")}
    for path in paths:
        data = read_bytes(path)
        digest = sha256(data)
        if digest not in roles:
            made = ", ".join(f"{known[:12]}…" for known in roles) or "none"
            raise FormatError(
                f"{path}: the plan was not made from this profile: its sha256 is {digest[:12]}…, "
                f"the plan's {made}; give the profile that the plan was built from"
            )
        read[roles[digest]] = profiles.loads(data, path)
    if missing := sorted(set(roles.values()) - set(read)):
        raise FormatError(
            f"the plan was built from {len(roles)} profiles, and --profile gives {len(read)}; give "
            f"also that with sha256 {plan.inputs[missing[0]][:12]}…"
        )
    return [read[role] for role in sorted(read, key=lambda role: (len(role), role))]


def _longest(plan: Plan, task: str | None) -> list[Program]:
    """The programs that train the task, or any: those in which most of the time is spent."""
    busy = {one.name: 0 for one in plan.programs if not one.evaluates}
    for segment in plan.segments:
        if segment.program in busy and task in (None, *plan.trained(segment)):
            busy[segment.program] += segment.end_us - segment.start_us
    names = sorted((name for name, us in busy.items() if us), key=lambda name: -busy[name])
    for own in (plan.program(name).tasks for name in names):
        if told := next((name for name in own if plan.task(name).lengths), ""):
            raise FormatError(
                f"{told}: its samples have lengths, by which steps are longer or shorter, not by "
                "chance; see python -m planner show --steps"
            )
    if len(names) > _MOST:
        print(f"only the {_MOST} longest of {len(names)} programs; see --task", file=sys.stderr)
    return [plan.program(name) for name in names[:_MOST]]


def _jitter(plan: Plan, program: Program, kinds: Sequence[Profile]) -> Jitter:
    """The steps of a program on the devices of its first segment."""
    segment = next(one for one in plan.segments if one.program == program.name)
    on = [kinds[_kind(plan.devices[number].name)] for number in segment.devices]
    planned = {name: plan.task(name) for name in program.tasks}
    measured = {
        name: [next(task for task in profile.tasks if task.name == name) for profile in on]
        for name in program.tasks
    }
    return jitter(program, spreads(program, planned, measured), seed=plan.solver.seed)


def _kind(device: str) -> int:
    """The number of a device's kind: 1 of `k1.cpu3`, 0 where there is but one kind."""
    kind, dot, _ = device.partition(".")
    return int(kind[1:]) if dot else 0
