"""The commands that plan: `build`, `estimate` and `sweep`."""

import argparse
import json
import os
import sys
import time
from dataclasses import fields
from functools import partial
from itertools import chain

import plans
import profiles
from planner import sweep_table
from planner.booking import make_book
from planner.builder import build, draft
from planner.errors import Infeasible, NoPlanFound
from planner.estimate import Lengths, Spec, estimate, estimate_own, read_lengths, works_of
from planner.estimate import describe as describe_profile
from planner.inputs import options_of, read_problem
from planner.sweep import Link, Setting, offers, sweep
from planner.views import book_summary, describe, describe_book, summary
from plans import runlog
from profiles.codec import check_target
from profiles.errors import FormatError
from profiles.schema import Profile


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


def build_book(options: argparse.Namespace) -> int:
    """Make, prove and write a plan book."""
    check_target(options.output, *options.profile, *options.corrections)
    sizes = [*chain.from_iterable(options.devices), *options.nodes]
    if not sizes:
        raise FormatError("a book has plans for several numbers of devices; give --devices 2..4")
    begun = time.monotonic()
    jobs = options.jobs or len(os.sched_getaffinity(0))
    how = partial(draft, seconds=options.time_limit, seed=options.seed, jobs=jobs)
    made = make_book(options.profile, sizes, options_of(options), how, jobs)
    plans.save(options.output, made)
    if options.json:
        print(json.dumps(book_summary(made), indent=1))
    else:
        print(describe_book(made))
        print(f"wrote {options.output} in {time.monotonic() - begun:.1f} s")
    return 0


def estimate_profile(options: argparse.Namespace) -> int:
    """Write a profile made of formulas, or say what each of several GPUs makes of a task."""
    if options.output is not None:
        if len(options.gpu) > 1 or options.price:
            raise FormatError("-o writes the profile of one GPU; leave it out for several's table")
        check_target(options.output)
    elif options.lengths:
        raise FormatError(
            "--lengths needs -o, the profile of one GPU, beside which they are written"
        )
    lengths = read_lengths(options.lengths) if options.lengths else None
    made = _own(options) if ":" in options.model else _named(options, lengths)
    if options.output is None:
        found = list(offers(made, dict(options.price), Setting()))
        for task in made[options.gpu[0]].tasks:
            name = task.name if ":" in options.model else options.model
            print(f"{name}, estimated, {task.steps} steps of {task.batch} samples")
        print(sweep_table.offers_table(found))
        return 0
    (profile,) = made.values()
    profiles.save(options.output, profile)
    if lengths is not None:
        profiles.lengths.save(options.output, profile.tasks[0].name, lengths)
    print(describe_profile(profile, lengths))
    print(f"wrote {options.output}")
    return 0


def _named(options: argparse.Namespace, lengths: Lengths | None) -> dict[str, Profile]:
    """The profile of a known model on each GPU."""
    if options.batch is None:
        raise FormatError(f"how many samples a step of {options.model} has is missing; add --batch")
    asked = {field.name: vars(options)[field.name] for field in fields(Spec)}
    given = {name: value for name, value in asked.items() if value is not None}
    return {gpu: estimate(Spec(**given | {"gpu": gpu}), lengths=lengths) for gpu in options.gpu}


def _own(options: argparse.Namespace) -> dict[str, Profile]:
    """The profile of the user's own tasks on each GPU."""
    for name in ("batch", "sequence", "lengths", "microbatches", "optimizer"):
        if vars(options)[name] is not None:
            flag = {"sequence": "seq", "microbatches": "microbatch"}.get(name, name)
            raise FormatError(f"--{flag} is what {options.model} says itself; leave it out")
    works = works_of(options.model)
    own = options.dtype, options.device_bytes, options.host_bytes, options.steps
    return {gpu: estimate_own(works, gpu, *own) for gpu in options.gpu}


def sweep_budgets(options: argparse.Namespace) -> int:
    """Plan every case and say where more memory stops helping; 3 or 4 when no case has a plan."""
    if options.plot:
        from planner.charts import gantt

        check_target(options.plot, options.profile)
        gantt.check_name(options.plot)
    profile = profiles.load(options.profile)
    lengths = profiles.lengths.load(options.profile, profile.tasks)
    setting = Setting(options.devices, options.host_memory, options.time_limit, options.seed)
    links = _pairs(options.h2d or (), options.d2h or ())
    sizes = options.microbatch or (None,)
    found = sweep(profile, options.device_memory, links, sizes, setting, lengths)
    if options.plot:
        gantt.save(sweep_table.figure(found), options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    print(
        json.dumps(sweep_table.to_json(found), indent=1)
        if options.json
        else sweep_table.table(found)
    )
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
