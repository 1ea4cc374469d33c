"""What the commands of `python -m planner` do with their options; each returns its exit code."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from msgspec import structs

import plans
import profiles
from planner import corrections, curves
from planner.builder import build
from planner.compare import compare, table, to_json
from planner.errors import Infeasible, NoPlanFound
from planner.estimate import Spec, estimate
from planner.estimate import describe as describe_profile
from planner.overrides import override
from planner.problem import Problem
from planner.residuals import residuals
from planner.show import describe
from planner.sweep import Link, Setting, longest, sweep
from plans import Plan, runlog, trace
from profiles.codec import check_target, read_bytes, sha256, write_atomic
from profiles.errors import FormatError


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
    check_target(options.output, options.profile, *options.corrections)
    data = read_bytes(options.profile)
    profile = profiles.loads(data, options.profile)
    profile = override(profile, h2d=options.h2d, d2h=options.d2h)
    profile, inputs = corrections.chain(profile, sha256(data), options.corrections)
    problem = Problem.of(
        profile,
        devices=options.devices,
        device_bytes=options.device_memory,
        host_bytes=options.host_memory,
    )
    begun = time.monotonic()
    print(f"planning {len(problem.tasks)} task(s) on {options.devices} device(s)", file=sys.stderr)
    plan = build(
        problem,
        profile_sha256=sha256(data),
        policy=options.policy,
        seconds=options.time_limit,
        seed=options.seed,
    )
    links = {way: f"{rate} bytes/s" for way in ("h2d", "d2h") if (rate := vars(options)[way])}
    plan = structs.replace(plan, inputs=plan.inputs | inputs, provenance=plan.provenance | links)
    plans.save(options.output, plan)
    seconds = time.monotonic() - begun
    if options.json:
        print(json.dumps(summary(plan) | {"build_seconds": round(seconds, 3)}, indent=1))
    else:
        print(describe(plan, rounds=False))
        print(f"wrote {options.output} in {seconds:.1f} s")
    return 0


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
        "bounds": {bound.name: bound.us for bound in prediction.bounds},
        "exposed_copy_us": sum(device.exposed_copy_us for device in prediction.devices),
        "peak_bytes": [device.peak_bytes for device in prediction.devices],
        "host_bytes": plan.host.bytes,
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
    """Describe a sound plan, and draw it."""
    _check_pictures(options, options.plan)
    plan = plans.load(options.plan)
    plans.prove(plan)  # what follows is about sound plans only
    _pictures(plan, None, options)
    print(describe(plan))
    return 0


def compare_run(options: argparse.Namespace) -> int:
    """Say how far a run was from its plan, draw it, and write what it taught."""
    _check_pictures(options, options.plan, options.log)
    if options.write_corrections:
        check_target(options.write_corrections, options.plan, options.log)
    data = read_bytes(options.plan)
    plan = plans.loads(data, options.plan)
    plans.prove(plan)
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


def _pictures(plan: Plan, log: runlog.RunLog | None, options: argparse.Namespace) -> None:
    if options.gantt:
        from planner import gantt  # matplotlib takes a second to import

        gantt.save(gantt.figure(plan, log), Path(options.gantt))
        print(f"wrote {options.gantt}", file=sys.stderr)
    if options.trace:
        write_atomic(options.trace, trace.trace(plan, log))
        print(f"wrote {options.trace}", file=sys.stderr)
