"""What the commands of `python -m planner` do with their options; each returns its exit code."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

import plans
import profiles
from planner import corrections, curves, microbatches, moment_words, moments, rest, sharing, zoom
from planner.build import build
from planner.compare import compare, table, to_json
from planner.errors import Infeasible, NoPlanFound
from planner.estimate import Spec, estimate
from planner.estimate import describe as describe_profile
from planner.overrides import only_microbatches, override
from planner.problem import Problem, Want
from planner.residuals import residuals
from planner.several import across
from planner.show import describe, host_bytes, mean_completion_us
from planner.sweep import Link, Setting, longest, sweep
from plans import Plan, runlog, trace
from profiles.codec import check_target, read_bytes, sha256, write_atomic
from profiles.errors import FormatError
from profiles.schema import Disk


def estimate_profile(options: argparse.Namespace) -> int:
    """Write a profile made of formulas."""
    check_target(options.output)
    profile = estimate(
        Spec(
            model=options.model,
            gpu=options.gpu,
            batch=options.batch,
            sequence=options.seq,
            microbatches=options.microbatch,
            optimizer=options.optimizer,
            dtype=options.dtype,
            steps=options.steps,
            device_bytes=options.device_memory,
            host_bytes=options.host_memory,
        )
    )
    profiles.save(options.output, profile)
    print(describe_profile(profile))
    print(f"wrote {options.output}")
    return 0


def build_plan(options: argparse.Namespace) -> int:
    """Make, prove and write a plan."""
    check_target(options.output, *options.profile, *options.corrections, *options.after)
    data = [read_bytes(path) for path in options.profile]
    inputs, kept, problem = _asked(data, options)
    problem = replace(_wanted(problem, options), segment_steps=options.segment_steps)
    problem = replace(problem, disk=_disk(problem.disk, options.disk_space))
    if options.link_groups:
        problem = sharing.shared(problem, options.link_groups)
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
    """What else than the first profile the plan is built from, by role; the microbatches that
    tasks of earlier runs keep; and the tasks on the devices that the options name."""
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
            profile, done = rest.after(profile, logs, options.after[-1])
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
    """With the objective and what is wanted of single tasks; FormatError for what does not go
    together."""
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
    """What a flag says of each task it names, once."""
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


def summary(plan: Plan) -> dict[str, Any]:
    """What `build --json` prints about a plan.

    period_us: of the program that runs longest, rounds times period; with one task its step time.
    """
    prediction = plan.prediction
    periods = {program.name: program.period_us for program in plan.programs}
    return {
        "makespan_us": prediction.makespan_us,
        "period_us": longest(plan).period_us,
        "periods_us": periods,
        "lower_bound_us": prediction.lower_bound_us,
        "lower_bound_name": prediction.lower_bound_name,
        "gap": prediction.gap_ppm / 1e6,
        "configuration_us": prediction.configuration_us,
        "mean_completion_us": mean_completion_us(plan),
        "bounds": {bound.name: bound.us for bound in prediction.bounds},
        "exposed_copy_us": sum(device.exposed_copy_us for device in prediction.devices),
        "peak_bytes": [device.peak_bytes for device in prediction.devices],
        "host_bytes": plan.host.bytes,
        "host": host_bytes(plan),
        "policy": plan.solver.policy,
        "status": plan.solver.status,
        "estimated": plan.estimated,
    }


def sweep_budgets(options: argparse.Namespace) -> int:
    """Plan every case and say where more memory stops helping; 3 or 4 when no case has a plan."""
    if options.plot:
        from planner import gantt

        check_target(options.plot, options.profile)
        gantt.check_name(options.plot)
    profile = profiles.load(options.profile)
    setting = Setting(options.devices, options.host_memory, options.time_limit, options.seed)
    links = _pairs(options.h2d or (), options.d2h or ())
    found = sweep(profile, options.device_memory, links, options.microbatch or (None,), setting)
    if options.plot:
        gantt.save(curves.figure(found), options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    print(json.dumps(curves.to_json(found), indent=1) if options.json else curves.table(found))
    if any(row.outcome for row in found.rows):
        return 0
    proven = all(row.problem.startswith("infeasible") for row in found.rows)
    return Infeasible.exit_code if proven else NoPlanFound.exit_code


def _pairs(h2d: tuple[int, ...], d2h: tuple[int, ...]) -> list[Link]:
    """The rates side by side; one alone goes with each of the other direction's."""
    if len(h2d) > 1 < len(d2h) and len(h2d) != len(d2h):
        raise FormatError(
            f"--h2d lists {len(h2d)} rates and --d2h {len(d2h)}; give as many, one, or none"
        )
    count = max(len(h2d), len(d2h), 1)
    ways = [rates * count if len(rates) == 1 else rates or (None,) * count for rates in (h2d, d2h)]
    return list(zip(*ways, strict=True))


def check_plan(options: argparse.Namespace) -> int:
    """Prove a plan."""
    plan = plans.load(options.plan)
    plans.prove(plan)
    ops = sum(len(p.enter) + len(p.round) + len(p.leave) for p in plan.programs)
    print(
        f"ok: {len(plan.tasks)} task(s), {len(plan.programs)} program(s) of {ops} ops, "
        f"{len(plan.segments)} segment(s): no race, no overflow, every value is the right one"
    )
    return 0


def show_plan(options: argparse.Namespace) -> int:
    """Describe a sound plan, or a moment of it, and draw it."""
    if options.task is not None and options.at is None:
        raise FormatError("--task says in which task to look for the moment --at; give --at too")
    if options.round and not options.gantt:
        raise FormatError("--round says which round --gantt draws; give --gantt too")
    _check_pictures(options, options.plan)
    plan = plans.load(options.plan)
    plans.prove(plan)  # what follows is about sound plans only
    now = None if options.at is None else moments.moment(plan, options.at, options.task)
    _pictures(plan, None, options, _chosen(plan, options))
    if now is None:
        print(json.dumps(summary(plan), indent=1) if options.json else describe(plan))
    elif options.json:
        print(json.dumps(moment_words.to_json(plan, now), indent=1))
    else:
        print(moment_words.describe(plan, now))
    return 0


def _chosen(plan: Plan, options: argparse.Namespace) -> zoom.Zoom | None:
    """The round that the picture shows large; None leaves it to the picture."""
    if options.round:
        return zoom.of_task(plan, *options.round)
    return None if options.at is None else zoom.of_moment(plan, options.at, options.task)


def compare_run(options: argparse.Namespace) -> int:
    """Say how far a run was from its plan, draw it, and write what it taught."""
    _check_pictures(options, options.plan, options.log)
    if options.write_corrections:
        check_target(options.write_corrections, options.plan, options.log)
    data = read_bytes(options.plan)
    plan = plans.loads(data, options.plan)
    plans.prove(plan)
    if options.write_corrections and "profile-1" in plan.inputs:
        raise FormatError(
            f"{options.plan}: was built from several profiles, and corrections are of one; leave "
            "out --write-corrections"
        )
    log = runlog.load(options.log)
    result = compare(plan, log, sha256(data))
    _pictures(plan, log, options)
    if options.write_corrections:
        digest = sha256(read_bytes(options.log))
        found = residuals(plan, log, plan_sha256=sha256(data), log_sha256=digest)
        corrections.save(options.write_corrections, found)
        print(f"wrote {options.write_corrections}", file=sys.stderr)
    print(json.dumps(to_json(result), indent=1) if options.json else table(result))
    return 0


def _check_pictures(options: argparse.Namespace, *inputs: str) -> None:
    for path in filter(None, (options.gantt, options.trace)):
        check_target(path, *inputs)


def _pictures(
    plan: Plan,
    log: runlog.RunLog | None,
    options: argparse.Namespace,
    chosen: zoom.Zoom | None = None,
) -> None:
    if options.gantt:
        from planner import gantt  # matplotlib takes a second to import

        at = None if log else options.at
        gantt.save(gantt.figure(plan, log, chosen=chosen, at=at), Path(options.gantt))
        print(f"wrote {options.gantt}", file=sys.stderr)
    if options.trace:
        write_atomic(options.trace, trace.trace(plan, log))
        print(f"wrote {options.trace}", file=sys.stderr)
