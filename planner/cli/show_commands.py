"""The commands about a plan that exists: `check`, `show`, `compare`, `report` and `export`."""

import argparse
import json
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import to_builtins
from numpy.typing import NDArray

import plans
from planner import curves, surviving
from planner.exporting import schedule
from planner.inputs import corrections, residuals
from planner.report import page, report
from planner.views import (
    START_US,
    book_summary,
    compare,
    describe,
    describe_alternatives,
    describe_book,
    describe_differences,
    differences,
    ranked_alternatives,
    reasons,
    summary,
    table,
    to_json,
)
from plans import Plan, runlog, trace
from profiles.codec import check_target, read_bytes, sha256, write_atomic
from profiles.errors import FormatError
from profiles.lengths import held_out
from profiles.units import parse_us, show_us

_APART_S, _SPARED = 5.0, 100  # between pages, at least; and so many times the work of one


def check_plan(options: argparse.Namespace) -> int:
    """Prove a plan, and the tables beside it; or all plans of a book."""
    data = read_bytes(options.plan)
    if plans.is_book(data):
        book = plans.book_from(data, options.plan)
        plans.prove_book(book)
        print(f"ok: {len(book.plans)} plan(s) of one training, each sound")
        return 0
    plan = plans.loads(data, options.plan)
    plans.prove(plan)
    lengths = _lengths(plan, options.lengths)
    plans.prove_tables(plan, options.plan, lengths)
    for name in _sums(plan).keys() - lengths.keys():
        print(
            f"{name}: how many tokens its microbatches get was not looked at; give the "
            "file of its samples' lengths, which lies beside the profile, as --lengths",
            file=sys.stderr,
        )
    ops = sum(len(p.ops) for p in plan.programs)
    print(
        f"ok: {len(plan.tasks)} task(s), {len(plan.programs)} program(s) of {ops} ops, "
        f"{len(plan.segments)} segment(s): no race, no overflow, every value is the right one"
    )
    return 0


def _lengths(plan: Plan, paths: Sequence[str]) -> dict[str, NDArray[np.uint32]]:
    """The lengths of the tasks' samples in these files; FormatError for those of no task."""
    found: dict[str, NDArray[np.uint32]] = {}
    for path in paths:
        data = read_bytes(path)
        digest = sha256(data)
        names = [name for name, known in _sums(plan).items() if known == digest]
        if not names:
            raise FormatError(
                f"{path}: its sha256 is {digest[:12]}…, that of no task's lengths; give the file "
                "that lies beside the profile that the plan was built from"
            )
        found |= dict.fromkeys(names, np.frombuffer(data, "<u4"))
    return found


def _sums(plan: Plan) -> dict[str, str]:
    """The sha256 of the lengths of each task's samples, and of those of its evaluation."""
    found = {task.name: task.lengths for task in plan.tasks}
    found |= {held_out(task.name): task.evaluation_lengths for task in plan.tasks}
    return {name: said.sha256 for name, said in found.items() if said}


def show_plan(options: argparse.Namespace) -> int:
    """Describe a sound plan, or what else was tried, and draw it."""
    if options.task is not None and not options.alternatives:
        raise FormatError("--task says of which task --alternatives tells; give --alternatives too")
    if options.round and not options.gantt:
        raise FormatError("--round says which round --gantt draws; give --gantt too")
    data = read_bytes(options.plan)
    if plans.is_book(data):
        return _show_book(options, data)
    if options.start is not None:
        raise FormatError(f"--start is about a book, and {options.plan} is one plan; leave it out")
    _check_pictures(options, options.plan)
    plan = plans.loads(data, options.plan)
    plans.prove(plan)  # what follows is about sound plans only
    task, step = options.round or (None, None)
    _pictures(plan, None, options, task=task, step=step)
    if options.alternatives:
        told = json.dumps(to_builtins(ranked_alternatives(plan, options.task)), indent=1)
        print(told if options.json else describe_alternatives(plan, options.task))
    elif options.json:
        print(json.dumps(summary(plan), indent=1))
    else:
        print(describe(plan))
    return 0


def _show_book(options: argparse.Namespace, data: bytes) -> int:
    for name in ("alternatives", "gantt", "trace"):
        if getattr(options, name):
            raise FormatError(
                f"--{name} is about one plan, and {options.plan} is a book of several; leave it out"
            )
    book = plans.book_from(data, options.plan)
    plans.prove_book(book)
    start_us, source = _start(options.start)
    if options.json:
        print(json.dumps(book_summary(book, start_us), indent=1))
    else:
        print(describe_book(book, start_us, source))
    return 0


def _start(asked: str | None) -> tuple[int, str]:
    """The time of a start, given or the mean of those of a run; and a text that says which."""
    if asked is None:
        return START_US, "assumed; --start"
    with suppress(ValueError):
        return parse_us(asked), "as given"
    measured = runlog.starts_us(asked)
    if not measured:
        raise FormatError(
            f"{asked}: no start in it was measured; give a run that has gone on, or a time like 10s"
        )
    return round(fmean(measured)), f"as {len(measured)} in {asked} took on average"


def survive_trace(options: argparse.Namespace) -> int:
    """Say what a book would train on the devices of a trace, and draw it."""
    if options.plot:
        from planner.charts import gantt, survived  # matplotlib takes a second to import

        check_target(options.plot, options.book, options.trace)
        gantt.check_name(options.plot)
    book = plans.book_from(read_bytes(options.book), options.book)
    plans.prove_book(book)
    counts = surviving.read_trace(options.trace)
    start_us, source = _start(options.start)
    paces = surviving.paces_of(book)
    how = {"whole": 1.0, "notice": options.notice}
    parts = surviving.stretches(paces, counts, counts[-1][0], start_us, **how)
    found = surviving.outcome(parts)
    if options.plot:
        title = f"{options.book} on {options.trace}: {found.share:.1%} of what could be"
        title += f", a start takes {show_us(start_us)} ({source})"
        gantt.save(survived.figure(parts, title), options.plot)
        print(f"wrote {options.plot}", file=sys.stderr)
    if options.json:
        told = {**asdict(found), "share": found.share, "start_us": start_us}
        print(json.dumps(told, indent=1))
        return 0
    sizes = [count for _, count in counts]
    lost = {"trained again": found.again, "starting again": found.starting}
    lost["waiting, since a start does not pay"] = found.waiting
    time = show_us(counts[-1][0] - counts[0][0])
    print(f"trace: {time} of {min(sizes)} to {max(sizes)} devices, {found.changes} changes of plan")
    print(f"a start: {show_us(start_us)} ({source})")
    print(f"trained: {found.trained:.2f} of the training, {found.share:.1%} of what could be")
    for why, part in lost.items():
        print(f"  {why}: {part / found.free if found.free else 0:.1%}")
    return 0


def compare_run(options: argparse.Namespace) -> int:
    """Say how far a run was from its plan, draw it, and write what it taught; or in what another
    plan differs."""
    options.log = str(_logs(options.log, sha256(read_bytes(options.plan)))[-1])
    if _is_plan(options.log):
        return _compare_plans(options)
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


def report_page(options: argparse.Namespace) -> int:
    """Write a page about a sound plan and, where some are given, runs of it."""
    check_target(
        options.output, options.plan, *(str(f) for run in options.run for f in runlog.files(run))
    )
    data = read_bytes(options.plan)
    if plans.is_book(data):
        raise FormatError(
            f"{options.plan}: is a book of several plans, and a page is about one; give a plan"
        )
    plan = plans.loads(data, options.plan)
    plans.prove(plan)
    first = options.run[0] if options.run else "RUN"

    def write(*, going: bool) -> None:
        others = {run: [runlog.load(f) for f in _logs(run, sha256(data))] for run in options.run}
        logs, names = others.pop(first, ()), (options.plan, first)
        made = report(plan, sha256(data), logs, names, going=going, others=others)
        write_atomic(options.output, page(made))

    if options.follow:
        _follow(write)
    write(going=False)
    print(f"wrote {options.output}", file=sys.stderr)
    return 0


def _follow(write: Callable[..., None]) -> None:
    """Write now and then, once there is something, until standard input ends: Ctrl-C is for the
    process at its other end, which may take a while to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_s = 0.0
    while not select.select([sys.stdin], [], [], wait_s)[0]:
        begun_s = time.process_time()
        with suppress(FormatError):  # there is no log yet, or that of the run before
            write(going=True)
        wait_s = max(_APART_S, _SPARED * (time.process_time() - begun_s))


def _logs(run: str, plan_sha256: str) -> list[Path]:
    """The logs in a run's folder, up to the latest one of this plan if there is one."""
    files = runlog.files(run)
    if len(files) == 1:
        return files
    own = [n for n, log in enumerate(files, 1) if runlog.read(log)[0].plan_sha256 == plan_sha256]
    return files[: own[-1]] if own else files


def _is_plan(path: str) -> bool:
    """True for a plan; a log has a record in each line."""
    return b'"format":"plan"' in read_bytes(path)[:200].replace(b" ", b"")


def _compare_plans(options: argparse.Namespace) -> int:
    asked = ("gantt", "copies", "trace", "write_corrections")
    for name in (name for name in asked if getattr(options, name)):
        raise FormatError(
            f"--{name.replace('_', '-')} is about a run, and {options.log} is a plan; give its "
            "run instead, or leave the option out"
        )
    first, second = plans.load(options.plan), plans.load(options.log)
    if options.json:
        found = [one._asdict() for one in differences(first, second)]
        print(json.dumps({"differences": found, "reasons": reasons(first, second)}, indent=1))
    else:
        print(describe_differences(first, second, (options.plan, options.log)))
    return 0


def export_plan(options: argparse.Namespace) -> int:
    """Write a sound plan's schedule and stages into a folder, or the curves of a run."""
    folder, made = Path(options.output), _EXPORTS[options.format](options.plan)
    files = {folder / name: data for name, data in made.items()}
    for path in files:
        check_target(path, options.plan)
    for path, data in files.items():
        write_atomic(path, data)
        print(f"wrote {path}", file=sys.stderr)
    return 0


def _schedule(path: str) -> Mapping[str, bytes]:
    plan = plans.load(path)
    plans.prove(plan)  # what is not sound here is not there either
    return schedule(plan).files()


def _tables(path: str) -> Mapping[str, bytes]:
    return {f"{task}.csv": curves.table(one) for task, one in _curves(path).items()}


def _events(path: str) -> Mapping[str, bytes]:
    name = "events.out.tfevents.gantry"  # TensorBoard looks for such names
    return {f"{task}/{name}": curves.events(one) for task, one in _curves(path).items()}


def _curves(path: str) -> Mapping[str, curves.Curve]:
    return curves.curves(map(runlog.load, runlog.files(path)))


_EXPORTS = {"torch-pipelining": _schedule, "csv": _tables, "tensorboard": _events}
EXPORTS = tuple(_EXPORTS)


def _check_pictures(options: argparse.Namespace, *inputs: str) -> None:
    if options.copies and not options.gantt:
        raise FormatError("--copies says what --gantt draws; give --gantt too")
    for path in filter(None, (options.gantt, options.trace)):
        check_target(path, *inputs)


def _pictures(
    plan: Plan, log: runlog.RunLog | None, options: argparse.Namespace, **asked: Any
) -> None:
    """Write the pictures that the options ask for; `asked` goes to `gantt.figure`."""
    if options.gantt:
        from planner.charts import gantt  # matplotlib takes a second to import

        picture = gantt.figure(plan, log, copies=options.copies, **asked)
        gantt.save(picture, options.gantt)
        print(f"wrote {options.gantt}", file=sys.stderr)
    if options.trace:
        write_atomic(options.trace, trace.trace(plan, log))
        print(f"wrote {options.trace}", file=sys.stderr)
