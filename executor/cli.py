"""The command line: `profile` measures a workload, `run` replays a plan, `tune` does
both for a sweep of settings.

Exit codes: 0 ok; 1 a failed run or an unsound plan; 2 wrong usage or a bad input file.
"""

import argparse
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import structs

import plans
import profiles
from executor import report, run, standings, tuning
from executor.books import Notice, book_in, chosen, following
from executor.errors import InterruptedRun, RunError, UsageError
from executor.records import Options, Result, above, try_exports
from executor.workload import (
    NO_CACHE,
    Sweep,
    Task,
    Wanted,
    build,
    built_fingerprint,
    held_out,
    judged_steps,
    lengths_of,
    load,
    load_sweep,
    load_tasks,
    steps_of,
)
from plans.schema import Plan
from profiles import console, lengths
from profiles.codec import check_target, pretty, read_bytes, sha256
from profiles.schema import Emulation, Numerics, Profile
from profiles.units import LARGEST

Given = tuple[Plan, Sequence[Task], Options]

_HUGGING_FACE = {
    "--task": "causal-lm (the default), masked-lm, ...",
    "--batch": "samples; default 8",
    "--seq": "tokens in a row; default 128",
    "--steps": "default 100",
    "--lr": "of AdamW; default 1e-4",
    "--precision": "fp32 (the default), bf16, ...",
}
_PROFILE_SWITCHES = {
    "--no-cache": "models of transformers keep no keys and values in training, which may change "
    "bits",
    "--tf32": "let fp32 products round to TF32",
    "--deterministic": "only kernels that repeat their bits",
}
_EXPLAIN = "say what the layers are and why; measure nothing"
_TUNED: dict[str, tuple[Callable[[str], Any], str]] = {
    "rungs": (
        console.listed(console.whole(1, LARGEST)),
        "of a function that returns tasks: compare them after so many steps, like 100,300,900",
    ),
    "keep": (
        console.typed(lambda text: float(Fraction(text))),
        "of those compared the part that goes on, like 1/3, the default",
    ),
    "metric": (str, "loss (the default), val_loss, or a metric of the evaluations"),
    "mode": (str, "min (the default) or max: which is better"),
}
_RUN_SWITCHES = {
    "--overwrite": "train from the plan's begin and write over the run in the folder",
    "--keep-going": "drop a task that fails and train the others to their end; exit code 1 if any "
    "did",
    "--trust-workload": "take the workload's tasks for those that the plan was made for, whatever "
    "has changed in them",
    "--json": "print the result as JSON",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse `argv`, run the command, print errors as one line; the exit code."""
    return console.run(_parser(), argv)


def _parser() -> argparse.ArgumentParser:
    parser = console.Parser(prog="python -m executor", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    _add_profile(commands.add_parser("profile", help="measure every layer of a workload"))
    _add_run(commands.add_parser("run", help="train what a plan says, as it says"))
    text = "train a sweep of settings, and end the weaker ones early"
    _add_tune(commands.add_parser("tune", help=text))
    return parser


def _add(parser: argparse.ArgumentParser, options: Mapping[str, str], **kind: Any) -> None:
    """Add options of one kind, each with its help."""
    for flag, text in options.items():
        parser.add_argument(flag, help=text, **kind)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    _add_measured(parser)
    parser.add_argument("--explain", action="store_true", help=_EXPLAIN)
    text = "measure nothing where the file is there, and of this workload as it is"
    parser.add_argument("--keep", action="store_true", help=text)
    parser.add_argument("-o", "--output", type=Path, help="profile file; needed but for --explain")
    parser.set_defaults(command=_profile)


def _add_tune(parser: argparse.ArgumentParser) -> None:
    _add_measured(parser)
    text = "folder of the sweep; the same command again goes on from there"
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help=text)
    for name, (parse, text) in _TUNED.items():
        parser.add_argument(f"--{name}", type=parse, help=text)
    text = "of the search for each plan; default 60"
    parser.add_argument("--time-limit", type=console.seconds, default=60.0, metavar="S", help=text)
    text = "train nothing now, but these tasks as well from the next rung on of the sweep in the "
    text += "folder, which may be training"
    parser.add_argument("--add", metavar="FILE.py:FUNCTION", help=text)
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.set_defaults(command=_tune, again=console.AGAIN)


def _add_measured(parser: argparse.ArgumentParser) -> None:
    """Add what a profile is made of: the workload, and the devices."""
    text = "file.py:function, package.module:function, or hf:NAME, a model or a local folder of "
    text += "Hugging Face transformers"
    parser.add_argument("workload", help=text)
    _add(parser, _HUGGING_FACE, group="of hf: workloads")
    _add(parser, _PROFILE_SWITCHES, action="store_true", group="expert")
    text = "cpu: emulated devices"
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help=text)
    text = "24MiB; of a CUDA device, what its process may take, by default all that is free"
    parser.add_argument("--device-memory", type=console.size, metavar="SIZE", help=text)
    links = dict.fromkeys(("--h2d", "--d2h"), "of copies, default 1GB/s")
    links["--p2p"] = "from one device to another, default 1GB/s"
    _add(parser, links, type=console.rate, metavar="RATE", group="emulated devices")
    slow = "emulated devices compute N times slower than this machine, so that its cores hold none "
    slow += "of them up; 1: as fast as they can; by default as much as its cores ask for"
    emulated = {"--latency-us": "of a copy, default 20", "--slow-compute": slow}
    _add(parser, emulated, type=int, metavar="N", group="emulated devices")
    text = "default 2 emulated ones, or one CUDA device"
    parser.add_argument("--devices", type=int, metavar="N", help=text)
    samples = {"--samples": "of each time, default 9"}
    _add(parser, samples, type=int, metavar="N", group="expert")
    sizes = {"--host-memory": "default: what is free"}
    _add(parser, sizes, type=console.size, metavar="SIZE", group="expert")
    text = "tokens of the sequences that tasks with lengths are measured with, like "
    text += (
        "128,512,1024,4096; four or more, one a multiple of 256; by default from their lengths; "
    )
    text += "of hf: workloads, which then have made-up documents of up to so many tokens"
    tokens = console.listed(console.whole(1, LARGEST))
    parser.add_argument(
        "--lengths", type=tokens, default=(), metavar="TOKENS", help=text, group="lengths"
    )
    text = "measure files there, so that idle tasks can wait on that disk"
    parser.add_argument("--disk", type=Path, metavar="DIR", help=text, group="expert")
    parser.set_defaults(samples=9)


def _workload(arguments: argparse.Namespace) -> str:
    """The reference from which a run loads the workload again."""
    given = vars(arguments)
    names = [flag.removeprefix("--") for flag in _HUGGING_FACE]
    asked = {name: given[name] for name in names if given[name] is not None}
    text, ending = str(arguments.workload), NO_CACHE if arguments.no_cache else ""
    if text.startswith("hf:"):
        from executor.workload import huggingface

        if arguments.lengths:
            asked["longest"] = max(arguments.lengths)
        return huggingface.completed(text, asked) + ending
    for name in asked:
        raise UsageError(f"--{name} is for hf: workloads; {text} says its own, so leave it out")
    return text + ending


def _profile(arguments: argparse.Namespace) -> int:
    from executor.profiling import explain, profiler  # slow to load, and `run` does without

    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UsageError("profile measures in one process; start it without torchrun")
    ref = _workload(arguments)
    if arguments.explain:
        print(explain.explain(ref))
        return 0
    if arguments.output is None:
        raise UsageError("where to write the profile is missing; add -o profiles/x.json")
    check_target(arguments.output, _source(arguments.workload))
    tasks, said = load(ref)
    if arguments.keep and _profiled(arguments.output, ref, tasks, said):
        print(f"profile: {arguments.output}, which is there")
        return 0
    measured = _measured(arguments, ref, tasks, said, arguments.output)
    profiles.save(arguments.output, measured)
    print(profiler.table(measured))
    print(f"profile: {arguments.output}")
    return 0


def _devices(arguments: argparse.Namespace) -> int:
    """The number of devices that are measured."""
    asked = arguments.devices
    return (2 if arguments.device == "cpu" else 1) if asked is None else int(asked)


def _measured(
    arguments: argparse.Namespace,
    ref: str,
    tasks: Sequence[Task],
    said: Mapping[str, str],
    output: Path,
) -> Profile:
    """The profile of these tasks; lengths of their samples are written beside the file where it
    will be."""
    from executor.profiling import profiler

    devices = _devices(arguments)
    options = profiler.Options(
        device_bytes=arguments.device_memory,
        emulation=_emulation(arguments, profiler.slowdown(devices)),
        devices=devices,
        samples=arguments.samples,
        host_bytes=arguments.host_memory,
        numerics=Numerics(arguments.tf32, arguments.deterministic),
        disk=arguments.disk,
        lengths=arguments.lengths,
    )
    measured = profiler.measure(ref, tasks, said, options)
    for task in tasks:
        if task.lengths is not None:
            lengths.save(output, task.name, lengths_of(task))
            if task.evaluate:
                name = lengths.held_out(task.name)
                lengths.save(output, name, lengths_of(held_out(task)))
    return measured


def _tune(arguments: argparse.Namespace) -> int:
    """Train a sweep, and say how its settings did."""
    ref, folder = _workload(arguments), arguments.output
    asked = {name: v for name in _TUNED if (v := vars(arguments)[name]) is not None}

    def sweep() -> Sweep:
        made = load_sweep(ref, asked)
        for more in tuning.added(folder):
            made = made.joined(load(more)[0])
        return made

    if arguments.add:
        return _added(arguments, sweep())

    def measure(known: Collection[str]) -> Profile | None:
        found = None
        for one in (ref, *tuning.added(folder)):
            tasks, said = load(one)
            if fresh := [task for task in tasks if task.name not in known]:
                console.note(f"profiling {len(fresh)} task(s)")
                own = _measured(arguments, one, fresh, said, folder / "profile.json")
                found = structs.replace(found, tasks=found.tasks + own.tasks) if found else own
        return found

    def train(path: Path) -> None:
        asked = ["run", str(path), "-o", str(folder), "--keep-going"]
        run(*_Asked(_parser().parse_args(asked)).given(lambda *_: None))

    options = ["--devices", str(_devices(arguments)), "--jobs", str(len(os.sched_getaffinity(0)))]
    options += ["--time-limit", str(arguments.time_limit)]
    found = tuning.Tuning(sweep, folder, measure, train, options).run()
    print(standings.to_json(*found) if arguments.json else standings.table(*found))
    return 0


def _added(arguments: argparse.Namespace, sweep: Sweep) -> int:
    """Add tasks to a sweep, which may train meanwhile, once their layers were looked at."""
    from executor.profiling import explain  # slow to load

    ref = str(arguments.add)
    tasks, _ = load(ref)
    sweep.joined(tasks)
    explain.explain(ref)
    tuning.add(arguments.output, ref, sweep)
    names = ", ".join(task.name for task in tasks)
    print(f"added: {names}; from the next rung on")
    return 0


def _profiled(path: Path, ref: str, tasks: Sequence[Task], said: Mapping[str, str]) -> bool:
    """True if the file is a profile of these tasks as they are."""
    if not path.exists():
        return False
    known = {t.name: (t.workload.ref, t.workload.sha256) for t in profiles.load(path).tasks}
    return known.keys() == said.keys() and all(
        known[t.name] == (ref, built_fingerprint(said[t.name], build(t)[0])) for t in tasks
    )


def _emulation(arguments: argparse.Namespace, slowdown: int) -> Emulation | None:
    """The emulated devices, by default `slowdown` times slower than this machine; None for
    GPUs."""
    given = vars(arguments)
    defaults = {"h2d": 10**9, "d2h": 10**9, "latency_us": 20, "slow_compute": slowdown}
    defaults["p2p"] = 10**9
    asked = {name: given[name] for name in defaults if given[name] is not None}
    if arguments.device == "cpu":
        if arguments.device_memory is None:
            raise UsageError("--device cpu emulates devices; say their size, --device-memory 24MiB")
        return Emulation(*(defaults | asked).values())
    for name in asked:
        raise UsageError(
            f"--{name.replace('_', '-')} is for emulated devices; a CUDA device is measured as it "
            "is, and `python -m planner build` takes other rates to plan for"
        )
    return None


def _add_run(parser: argparse.ArgumentParser) -> None:
    text = "plan file, proven before it runs; or a plan book: as many devices train as there are"
    parser.add_argument("plan", type=Path, help=text)
    text = "folder of the run: its log, and <task>.pt with the latest state of each task; the same "
    text += "command again goes on from there; default runs/<plan's name>"
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=text)
    _add(parser, _RUN_SWITCHES, action="store_true", group="common")
    text = (
        "give up when no op ends for so long; default 60, or 20 times the longest op; of several "
    )
    text += "processes also when one of them is silent for so long, at the start 60 at least"
    parser.add_argument(
        "--stall-seconds", type=console.seconds, metavar="N", help=text, group="expert"
    )
    text = (
        "seconds that rounds under way may take to end after a signal to end the run; by default "
    )
    text += "as long as they last"
    parser.add_argument("--grace", type=console.seconds, metavar="N", help=text, group="expert")
    text = "like 3.5@200: end each task whose loss is above that, or no number, where a segment of "
    text += "it ends after so many steps"
    rule = console.typed(above)
    parser.add_argument("--stop-above", type=rule, metavar="LOSS@STEP", help=text, group="expert")
    text = "of a plan book: train on as many devices as that file has lines, and go on with others "
    text += "when they change"
    parser.add_argument(
        "--devices-file", type=Path, metavar="FILE", help=text, group="several devices"
    )
    text = (
        "in the end write each trained model to a folder of its name there, for `from_pretrained`"
    )
    parser.add_argument("--save", type=Path, metavar="DIR", help=text)
    text = "a page about the run, written anew while it goes on, as `python -m planner report` does"
    parser.add_argument("--report", type=Path, metavar="HTML", help=text)
    parser.set_defaults(command=_run, begun_s=None)


def _source(ref: str) -> str:
    """The file of a workload `file.py:function`."""
    return ref.rpartition(":")[0]


def _run(arguments: argparse.Namespace) -> int:
    finish = partial(_finished, arguments)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from executor import processes  # slow to load

        if arguments.devices_file:
            raise UsageError("--devices-file is of one process; torchrun says how many there are")
        return processes.main(_Asked(arguments), finish)
    if arguments.devices_file:

        def train(devices: int, notice: Notice) -> int:
            asked = _Asked(arguments, devices, notice)
            try:
                return finish(asked.given(lambda *_: None), run)
            except InterruptedRun as error:
                arguments.begun_s = error.stepped_s
                raise
            finally:
                arguments.overwrite = False  # it goes on from what it has written

        return following(arguments.devices_file, book_in(arguments.plan), train)
    return finish(_Asked(arguments).given(lambda *_: None), run)


class _Asked:
    """The run that the arguments of `run` ask for. devices, notice: of a plan book, see `books`."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        devices: int | None = None,
        notice: Notice | None = None,
    ) -> None:
        self._arguments, self._devices, self._notice = arguments, devices, notice
        self.stall_seconds: float | None = arguments.stall_seconds

    def given(self, told: Callable[[Plan, Options], None]) -> Given:
        """All that a run is given, loaded, and its plan proven; `told` what is there before."""
        path, options = self._arguments.plan, self.options()
        plan = plans.loads(options.plan_file or b"", str(path))
        told(plan, options)
        plans.prove(plan)
        tasks = self.tasks(plan.tasks)
        measured = {}
        for planned, task in zip(plan.tasks, tasks, strict=True):
            if planned.lengths:
                steps_of(planned, task, (), path)  # of the samples that were planned
                measured[task.name] = lengths_of(task)
            if judged_steps(planned, task, (), path):
                measured[lengths.held_out(task.name)] = lengths_of(held_out(task))
        plans.prove_tables(plan, path, measured)
        return plan, tasks, options

    def options(self) -> Options:
        """Its options, with the plan's file."""
        arguments, (data, book) = self._arguments, self._file
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # goes on, whatever it had
        return Options(
            folder=_folder(arguments),
            overwrite=arguments.overwrite and not again,
            plan_file=data,
            stall_seconds=arguments.stall_seconds,
            keep_going=arguments.keep_going,
            stop=arguments.stop_above,
            tables=arguments.plan,
            book=book,
            notice=self._notice,
            grace_s=arguments.grace,
            begun_s=arguments.begun_s,
        )

    def proven(self) -> Plan:
        """The plan, as it is in the file."""
        return plans.loads(self._file[0], str(self._arguments.plan))

    @cached_property
    def _file(self) -> tuple[bytes, Sequence[str]]:
        """The file of the plan, or as it would be of the one that is chosen from a book; and the
        sha256 of all plans of the book."""
        data, path = read_bytes(self._arguments.plan), str(self._arguments.plan)
        if plans.is_book(data):
            if self._arguments.overwrite and "TORCHELASTIC_RUN_ID" in os.environ:
                raise UsageError(
                    "--overwrite would write over the run whenever a machine joins it; give "
                    "another folder, -o runs/y, or remove the one that is there"
                )
            book = plans.book_from(data, path)
            every = [pretty(plan) for plan in book.plans]
            own = chosen(book, self._devices, path)
            return every[book.plans.index(own)], [sha256(one) for one in every]
        return data, ()

    def tasks(self, wanted: Iterable[Wanted]) -> Sequence[Task]:
        """These tasks of the plan, from their workloads."""
        return load_tasks(wanted, trust=self._arguments.trust_workload)


def _finished(
    arguments: argparse.Namespace,
    given: Given,
    train: Callable[[Plan, Sequence[Task], Options], Result],
) -> int:
    """Train and report; the exit code."""
    plan, tasks, options = given
    if arguments.save:
        trained = {t.name: sum(shard.grad_bytes for shard in t.shards) for t in plan.tasks}
        try_exports(arguments.save, trained)
    with report.paged(arguments.plan, _folder(arguments), arguments.report):
        result = train(plan, tasks, options)
    if arguments.save:
        result = _saved(arguments.save, plan, result)
    show = report.to_json if arguments.json else report.table
    print(show(plan, result, _folder(arguments)), flush=True)
    for error in result.troubles:
        console.fail(error, 1)
    return 1 if result.dropped or result.troubles else 0


def _saved(folder: Path, plan: Plan, result: Result) -> Result:
    """Write the models of all tasks that were not dropped; the result, with what went wrong."""
    troubles = []
    for name in (task.name for task in plan.tasks if task.name not in result.dropped):
        try:
            result.save(name, folder / name)
            console.note(f"{folder / name}: written")
        except RunError as error:
            troubles.append(str(error))
    return replace(result, troubles=(*result.troubles, *troubles))


def _folder(arguments: argparse.Namespace) -> Path:
    """The folder of the run."""
    folder: Path | None = arguments.output
    return folder or Path("runs") / arguments.plan.stem
