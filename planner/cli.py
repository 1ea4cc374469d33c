"""python -m planner estimate | build | check | show | compare. Results on stdout, progress on stderr.

Exit codes: 0 ok; 1 the check failed; 2 usage or bad file; 3 infeasible; 4 no plan in time.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

import plans
import profiles
from planner import corrections
from planner.builder import build
from planner.compare import compare, table, to_json
from planner.estimate import MOMENTS, NUMBER, Spec, estimate
from planner.estimate import describe as describe_profile
from planner.gpus import GPUS
from planner.models import MODELS
from planner.overrides import override
from planner.problem import Problem
from planner.residuals import residuals
from planner.show import describe
from plans import Plan, runlog, trace
from profiles import console
from profiles.codec import check_target, read_bytes, sha256, write_atomic

_EPILOG = """examples:
  python -m planner build profiles/demo.json --devices 2 -o plans/demo.json
  python -m planner estimate gpt2-xl --gpu a100-40 --batch 16 -o profiles/gpt2-xl.json
  python -m planner show plans/demo.json --gantt plans/demo.png
  python -m planner compare plans/demo.json runs/demo.jsonl --gantt compare.png

exit codes: 0 ok; 1 failed check; 2 usage or bad file; 3 infeasible; 4 no plan in time"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is returned, errors are one line on stderr."""
    return console.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m planner",
        description="Plan, check, show and compare timetables.",
        epilog=_EPILOG,
        formatter_class=raw,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands)
    _add_estimate(commands)
    check = commands.add_parser("check", help="prove that a plan neither races nor overflows")
    check.add_argument("plan", metavar="PLAN")
    check.set_defaults(command=_check)
    show = commands.add_parser("show", help="describe a plan; draw it")
    show.add_argument("plan", metavar="PLAN")
    show.add_argument("--gantt", metavar="PNG", help="write a Gantt chart")
    show.add_argument("--trace", metavar="JSON", help="write a trace for ui.perfetto.dev")
    show.set_defaults(command=_show)
    against = commands.add_parser("compare", help="predicted against actual")
    against.add_argument("plan", metavar="PLAN")
    against.add_argument("log", metavar="RUNLOG")
    against.add_argument("--gantt", metavar="PNG", help="write a Gantt chart, planned over actual")
    against.add_argument("--trace", metavar="JSON", help="write both as a trace")
    msg = "write what the run taught, for build --corrections"
    against.add_argument("--write-corrections", metavar="FILE", help=msg)
    against.add_argument("--json", action="store_true", help="print JSON")
    against.set_defaults(command=_compare)
    return parser


def _add_build(commands: Any) -> None:
    parser = commands.add_parser("build", help="make a plan from a profile")
    parser.add_argument("profile", metavar="PROFILE")
    parser.add_argument("-o", "--output", required=True, metavar="PLAN")
    parser.add_argument(
        "--devices", type=console.whole(1, 1 << 16), default=1, help="how many (default 1)"
    )
    msg = "memory of each device, like 24GiB (default: as profiled)"
    parser.add_argument("--device-memory", type=console.size, metavar="SIZE", help=msg)
    msg = "host memory for parameters, state and gradients (default: as profiled)"
    parser.add_argument("--host-memory", type=console.size, metavar="SIZE", help=msg)
    for flag, way in (("--h2d", "host to device"), ("--d2h", "device to host")):
        msg = f"rate of copies {way}, like 25GB/s (default: as profiled)"
        parser.add_argument(flag, type=console.rate, metavar="RATE", help=msg)
    msg = "correct the profile by what compare --write-corrections wrote; repeat it for a second "
    msg += "file, of a run of the plan that the first one gave"
    parser.add_argument("--corrections", action="append", default=[], metavar="FILE", help=msg)
    parser.add_argument("--time-limit", type=console.seconds, default=60.0, metavar="SECONDS")
    parser.add_argument("--seed", type=console.whole(0, 2**31 - 1), default=0)
    msg = "gantry, or hydra: the baseline to compare with"
    parser.add_argument("--policy", choices=("gantry", "hydra"), default="gantry", help=msg)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_build)


def _add_estimate(commands: Any) -> None:
    parser = commands.add_parser("estimate", help="make a profile from formulas, without a GPU")
    parser.add_argument("model", choices=MODELS, metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--gpu", required=True, choices=GPUS, metavar="NAME", help=", ".join(GPUS))
    positive = console.whole(1, 1 << 28)
    parser.add_argument("--batch", required=True, type=positive, help="samples in a step")
    parser.add_argument("--seq", type=positive, help="tokens of a sample (default: the model's)")
    msg = "sizes to offer, like 1,2,4 (default: powers of two that divide the batch, and it)"
    parser.add_argument("--microbatch", type=_wholes, metavar="SIZES", help=msg)
    parser.add_argument("--optimizer", choices=MOMENTS, default="adamw", help="default adamw")
    parser.add_argument("--dtype", choices=NUMBER, default="bf16", help="default bf16")
    parser.add_argument("--steps", type=console.whole(1, 10**9), default=1000, help="default 1000")
    msg = "memory of the GPU for plans (default: all but 1 GiB)"
    parser.add_argument("--device-memory", type=console.size, metavar="SIZE", help=msg)
    msg = "host memory (default: that of a typical host)"
    parser.add_argument("--host-memory", type=console.size, metavar="SIZE", help=msg)
    parser.add_argument("-o", "--output", required=True, metavar="PROFILE")
    parser.set_defaults(command=_estimate)


def _wholes(text: str) -> tuple[int, ...]:
    """An argument such as 1,2,4."""
    parse = console.whole(1, 1 << 28)
    return tuple(parse(part) for part in text.split(","))


def _estimate(options: argparse.Namespace) -> int:
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


def _build(options: argparse.Namespace) -> int:
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
    busy = dict.fromkeys(periods, 0)
    for segment in plan.segments:
        busy[segment.program] += segment.rounds * periods[segment.program]
    return {
        "makespan_us": prediction.makespan_us,
        "period_us": periods[max(periods, key=lambda name: busy[name])],
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
    }


def _check(options: argparse.Namespace) -> int:
    plan = plans.load(options.plan)
    plans.prove(plan)
    ops = sum(len(p.enter) + len(p.round) + len(p.leave) for p in plan.programs)
    print(
        f"ok: {len(plan.tasks)} task(s), {len(plan.programs)} program(s) of {ops} ops, "
        f"{len(plan.segments)} segment(s): no race, no overflow, every value is the right one"
    )
    return 0


def _show(options: argparse.Namespace) -> int:
    _check_pictures(options, options.plan)
    plan = plans.load(options.plan)
    plans.prove(plan)  # what follows is about sound plans only
    _pictures(plan, None, options)
    print(describe(plan))
    return 0


def _compare(options: argparse.Namespace) -> int:
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
