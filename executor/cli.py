"""The command line: `profile` measures a workload, `run` replays a plan.

Exit codes: 0 ok; 1 a failed run or an unsound plan; 2 wrong usage or a bad input file.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import plans
import profiles
from executor import report, run, saving
from executor.errors import MismatchError, UsageError
from executor.records import Options, Trace, stopping
from executor.workload import NO_CACHE, Task, load
from plans.schema import Plan
from profiles import console
from profiles.codec import check_target, read_bytes
from profiles.schema import Emulation, Numerics, Workload


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, run the command, print errors as one line; the exit code."""
    return console.run(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = console.Parser(prog="python -m executor", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_profile(commands.add_parser("profile", help="measure every layer of a workload"))
    _add_run(commands.add_parser("run", help="train what a plan says, as it says"))
    return parser


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload",
        help="file.py:function, package.module:function, or hf:NAME, a model or a local folder "
        "of Hugging Face transformers",
    )
    _add_hugging_face(parser)
    parser.add_argument(
        "--no-cache",
        action="store_true",
        help="models of transformers keep no keys and values in training, which may change bits",
    )
    parser.add_argument(
        "--explain", action="store_true", help="say what the layers are and why; measure nothing"
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cpu: emulated devices"
    )
    parser.add_argument(
        "--device-memory",
        type=console.size,
        metavar="SIZE",
        help="24MiB; of a CUDA device, what its process may take, by default all that is free",
    )
    for link in ("--h2d", "--d2h"):
        parser.add_argument(
            link, type=console.rate, metavar="RATE", help="of emulated devices, default 1GB/s"
        )
    parser.add_argument(
        "--latency-us", type=int, metavar="N", help="of a copy of emulated devices, default 20"
    )
    parser.add_argument(
        "--slow-compute",
        type=int,
        metavar="N",
        help="emulated devices compute N times slower than this machine, so that its cores hold "
        "none of them up; 1: as fast as they can; by default as much as its cores ask for",
    )
    parser.add_argument(
        "--devices", type=int, metavar="N", help="default 2 emulated ones, or one CUDA device"
    )
    parser.add_argument("--tf32", action="store_true", help="let fp32 products round to TF32")
    parser.add_argument(
        "--deterministic", action="store_true", help="only kernels that repeat their bits"
    )
    parser.add_argument("--samples", type=int, default=9, metavar="N", help="of each time")
    parser.add_argument(
        "--host-memory", type=console.size, metavar="SIZE", help="default: what is free"
    )
    parser.add_argument(
        "--disk",
        type=Path,
        metavar="DIR",
        help="measure files there, so that idle tasks can wait on that disk",
    )
    parser.add_argument("-o", "--output", type=Path, help="profile file; needed but for --explain")
    parser.set_defaults(command=_profile)


def _add_hugging_face(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of hf: workloads")
    group.add_argument("--task", metavar="TASK", help="causal-lm (the default), masked-lm, ...")
    group.add_argument("--batch", type=int, metavar="N", help="samples; default 8")
    group.add_argument("--seq", type=int, metavar="N", help="tokens in a row; default 128")
    group.add_argument("--steps", type=int, metavar="N", help="default 100")
    group.add_argument("--lr", type=float, metavar="RATE", help="of AdamW; default 1e-4")
    group.add_argument("--precision", metavar="KIND", help="fp32 (the default), bf16, ...")


def _workload(arguments: argparse.Namespace) -> str:
    """The reference from which a run loads the workload again."""
    names = ("task", "batch", "seq", "steps", "lr", "precision")
    asked = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    text, ending = str(arguments.workload), NO_CACHE if arguments.no_cache else ""
    if not text.startswith("hf:"):
        for name in asked:
            raise UsageError(f"--{name} is for hf: workloads; {text} says its own")
        return text + ending
    from executor.workload import huggingface

    name, options = huggingface.parse(text)
    return huggingface.ref(name, replace(options, **asked)) + ending


def _profile(arguments: argparse.Namespace) -> int:
    from executor.profiling import explain, profiler  # slow to load, and `run` does without

    ref = _workload(arguments)
    if arguments.explain:
        print(explain.explain(ref))
        return 0
    if arguments.output is None:
        raise UsageError("where to write the profile is missing; add -o profiles/x.json")
    check_target(arguments.output, _source(arguments.workload))
    devices = _or(arguments.devices, 2 if arguments.device == "cpu" else 1)
    options = profiler.Options(
        device_bytes=arguments.device_memory,
        emulation=_emulation(arguments, profiler.slowdown(devices)),
        devices=devices,
        samples=arguments.samples,
        host_bytes=arguments.host_memory,
        numerics=Numerics(arguments.tf32, arguments.deterministic),
        disk=arguments.disk,
    )
    measured = profiler.profile(ref, options)
    profiles.save(arguments.output, measured)
    print(profiler.table(measured))
    print(f"profile: {arguments.output}")
    return 0


def _emulation(arguments: argparse.Namespace, slowdown: int) -> Emulation | None:
    """The emulated devices, by default `slowdown` times slower than this machine; None for CUDA
    devices."""
    h2d, d2h, latency = arguments.h2d, arguments.d2h, arguments.latency_us
    slow = arguments.slow_compute
    if arguments.device == "cpu":
        if arguments.device_memory is None:
            raise UsageError("--device cpu emulates devices; say their size, --device-memory 24MiB")
        return Emulation(_or(h2d, 10**9), _or(d2h, 10**9), _or(latency, 20), _or(slow, slowdown))
    asked = {"--h2d": h2d, "--d2h": d2h, "--latency-us": latency, "--slow-compute": slow}
    for flag in (flag for flag, value in asked.items() if value is not None):
        raise UsageError(
            f"{flag} is for emulated devices; a CUDA device is measured as it is, "
            "and `planner build` takes other rates to plan for"
        )
    return None


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, help="plan file, proven before it runs")
    parser.add_argument(
        "-o", "--output", type=Path, help="run log; default runs/<plan's name>.jsonl"
    )
    parser.add_argument("--save", type=Path, metavar="DIR", help="write <task>.pt files there")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="keep <task>-<step>.pt there, of the latest segment of the task that has ended",
    )
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="where the tasks of this plan go on from"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="train again what later checkpoints in these folders have, and write over them and "
        "over a log that a run could go on from",
    )
    parser.add_argument(
        "--disk",
        type=Path,
        metavar="DIR",
        help="where idle tasks wait, for a plan whose tasks do not fit the host memory together",
    )
    parser.add_argument(
        "--stall-seconds",
        type=console.seconds,
        metavar="N",
        help="give up when no op ends for so long; default 60, or 20 times the longest op",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="drop a task that fails and train the others to their end; exit code 1 if any did",
    )
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="RULE",
        help="loss>3.5@200, or task:loss<0.1@200: end a task early, where a segment of it ends",
    )
    parser.add_argument(
        "--serial-copies", action="store_true", help="let no two ops of a device overlap"
    )
    parser.add_argument(
        "--torch-profile",
        type=Path,
        metavar="DIR",
        help="write a trace of torch's profiler there, of the first seconds",
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(command=_run)


def _source(ref: str) -> str:
    """The file of a workload `file.py:function`."""
    return ref.rpartition(":")[0]


def _run(arguments: argparse.Namespace) -> int:
    data = read_bytes(arguments.plan)
    plan = plans.loads(data, str(arguments.plan))
    plans.prove(plan)
    log = arguments.output or Path("runs") / f"{arguments.plan.stem}.jsonl"
    check_target(log, arguments.plan, *(_source(task.workload.ref) for task in plan.tasks))
    rules = tuple(map(stopping.parse, arguments.stop))
    evaluated = [task.name for task in plan.tasks if task.evaluation]
    stopping.check(rules, [task.name for task in plan.tasks], evaluated)
    tasks = load_tasks(plan)
    folder, name = arguments.torch_profile, arguments.plan.stem
    trace = Trace(folder, name) if folder else None
    options = Options(
        log=log,
        checkpoints=arguments.checkpoints,
        resume=arguments.resume,
        serial_copies=arguments.serial_copies,
        stall_seconds=arguments.stall_seconds,
        plan_sha256=plans.sha256(data),
        trace=trace,
        keep_going=arguments.keep_going,
        stop=rules,
        disk=arguments.disk,
        overwrite=arguments.overwrite,
    )
    with saving.opened(arguments.save, options, plan.tasks) as folder:
        result = run(plan, tasks, options)
        saved = saving.save(folder, plan, result, options) if folder else saving.Saved()
    show = report.to_json if arguments.json else report.table
    errors = [*result.troubles, *saved.errors]
    print(show(plan, result, log, saved.files, errors), flush=True)
    if trace and not arguments.json:
        print(f"torch profile: {trace.target}")
    for error in errors:
        console.fail(error, 1)
    return 1 if result.dropped or errors else 0


def load_tasks(plan: Plan) -> list[Task]:
    """The plan's tasks from their workloads, which must be those that the plan was made for."""
    loaded: dict[Workload, dict[str, Task]] = {}
    for planned in plan.tasks:
        source = planned.workload
        if source not in loaded:
            tasks, _ = load(source.ref, source.sha256)
            loaded[source] = {task.name: task for task in tasks}
        if planned.name not in loaded[source]:
            names = ", ".join(loaded[source])
            raise MismatchError(f"{source.ref}: has no task {planned.name}, only {names}")
    return [loaded[planned.workload][planned.name] for planned in plan.tasks]
