"""The command `build`: from profiles, corrections and run logs to a plan."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

import plans
import profiles
from planner.builder import build
from planner.cli.show_commands import summary
from planner.errors import Infeasible
from planner.inputs import (
    Problem,
    Want,
    across,
    corrections,
    link_groups,
    microbatches,
    only_microbatches,
    override,
    remaining,
)
from planner.views.show import describe
from plans import runlog
from profiles.codec import check_target, read_bytes, sha256
from profiles.errors import FormatError
from profiles.schema import Disk


def build_plan(options: argparse.Namespace) -> int:
    """Make, prove and write a plan."""
    check_target(options.output, *options.profile, *options.corrections, *options.after)
    data = [read_bytes(path) for path in options.profile]
    inputs, kept, problem = _asked(data, options)
    problem = replace(_wanted(problem, options), segment_steps=options.segment_steps)
    problem = replace(problem, disk=_disk(problem.disk, options.disk_space))
    if options.link_groups:
        problem = link_groups.shared(problem, options.link_groups)
    begun = time.monotonic()
    print(f"planning {len(problem.tasks)} task(s) on {problem.devices} device(s)", file=sys.stderr)
    try:
        plan = build(
            problem,
            profile_sha256=sha256(data[0]),
            policy=options.policy,
            seconds=options.time_limit,
            seed=options.seed,
            jobs=options.jobs,
        )
    except Infeasible as error:
        raise microbatches.too_small(error, kept) from None
    asked = {way: f"{rate} bytes/s" for way in ("h2d", "d2h") if (rate := vars(options)[way])}
    asked |= _wishes(options)
    plan = structs.replace(plan, inputs=plan.inputs | inputs, provenance=plan.provenance | asked)
    plans.save(options.output, plan)
    seconds = time.monotonic() - begun
    if options.json:
        print(json.dumps(summary(plan) | {"build_seconds": round(seconds, 3)}, indent=1))
    else:
        print(describe(plan, rounds=False))
        print(f"wrote {options.output} in {seconds:.1f} s")
    return 0


def _asked(
    data: Sequence[bytes], options: argparse.Namespace
) -> tuple[dict[str, str], dict[str, int], Problem]:
    """The sha256 of every input but the first profile, by role; the microbatches that tasks of
    earlier runs keep; and the problem that the options describe."""
    names, counts = options.profile, options.devices
    if len(counts) != len(names):
        raise FormatError(
            f"--devices says {_count(len(counts), 'number')} but there "
            f"{_count(len(names), 'profile', verb=True)}; give as many devices of each kind as "
            "there are, like 2,4, in the order of the profiles"
        )
    sizes = options.device_memory or (None,)
    if len(sizes) not in (1, len(names)):
        raise FormatError(
            f"--device-memory lists {len(sizes)} sizes for {_count(len(names), 'profile')}; give "
            "one for all kinds of devices, or one for each"
        )
    if len(names) > 1 and options.corrections:
        raise FormatError(
            "--corrections are of one kind of devices and cannot be told apart by profile; leave "
            "them out, or plan with one profile"
        )
    asked, logs = [], [runlog.load(run) for run in options.after]
    done, before, kept = dict[str, int](), dict[str, int](), dict[str, int]()
    for path, content in zip(names, data, strict=True):
        profile = profiles.loads(content, path)
        profile = override(profile, h2d=options.h2d, d2h=options.d2h)
        profile, inputs = corrections.chain(profile, sha256(content), options.corrections)
        if logs:
            profile, done = remaining.after(profile, logs, options.after[-1])
            before = microbatches.begun(logs, done, options.after[-1], options.microbatch)
            kept = microbatches.kept(before, options.microbatch)
            microbatches.measured(profile, kept, path)
        wanted = microbatches.wanted([task.name for task in profile.tasks], options.microbatch)
        asked.append(only_microbatches(profile, kept | wanted))
    inputs |= {f"profile-{n}": sha256(content) for n, content in enumerate(data) if n}
    problem = across(
        asked,
        names,
        devices=counts,
        device_bytes=sizes * len(names) if len(sizes) == 1 else sizes,
        host_bytes=options.host_memory,
    )
    return inputs, kept, replace(problem, done=done, microbatch=before)


def _count(number: int, what: str, *, verb: bool = False) -> str:
    """Like `1 profile` or `are 2 profiles`."""
    is_are = ("is " if number == 1 else "are ") if verb else ""
    return f"{is_are}{number} {what}{'' if number == 1 else 's'}"


def _disk(profiled: Disk | None, space: int | None) -> Disk | None:
    """The disk as profiled, or with so many bytes; FormatError where its rates are not known."""
    if not space:
        return profiled if space is None else None
    if profiled is None:
        raise FormatError(
            "--disk-space: the profile does not say how fast the disk is; profile with --disk DIR"
        )
    return structs.replace(profiled, usable_bytes=space)


def _wanted(problem: Problem, options: argparse.Namespace) -> Problem:
    """The problem with its objective and the wishes about single tasks; FormatError for options
    that do not go together."""
    if options.policy != "gantry" and _wishes(options):
        raise FormatError(
            f"--policy {options.policy} knows neither objectives nor starts, deadlines and "
            "priorities; leave out --policy or them"
        )
    if options.priority and options.objective != "completion":
        raise FormatError("--priority weighs completion times; add --objective completion")
    starts, deadlines, weights = (
        _by_task(problem, flag, vars(options)[flag]) for flag in ("start", "deadline", "priority")
    )
    wants = {
        name: Want(starts.get(name, 0), deadlines.get(name), weights.get(name, 1))
        for name in starts | deadlines | weights
    }
    return replace(problem, objective=options.objective, wants=wants)


def _by_task(problem: Problem, flag: str, given: Sequence[tuple[str, int]]) -> dict[str, int]:
    """A flag's value for each task it names; FormatError for an unknown or repeated task."""
    names, told = [task.name for task in problem.tasks], dict(given)
    for name in told:
        if name not in names:
            raise FormatError(f"--{flag}: there is no task {name!r}, only {', '.join(names)}")
    if len(told) < len(given):
        repeated = next(name for name, count in Counter(n for n, _ in given).items() if count > 1)
        raise FormatError(f"--{flag}: task {repeated!r} has more than one; give it once")
    return told


def _wishes(options: argparse.Namespace) -> dict[str, str]:
    """Objective and wants as the plan's provenance tells them."""
    told = {} if options.objective == "makespan" else {"objective": options.objective}
    for flag, unit in (("start", " us"), ("deadline", " us"), ("priority", "")):
        told |= {f"{flag} {name}": f"{value}{unit}" for name, value in vars(options)[flag]}
    return told
