"""All that a page says about a plan and its run, before it is a page."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from planner import curves
from planner.report.host import Steps, host_memory
from planner.report.timeline import Timeline, timeline
from planner.views import (
    ALTERNATIVE,
    Comparison,
    Rows,
    alternative_row,
    bounds,
    compare,
    compared,
    describe,
    device_rows,
    parts_of_round,
    ranked_alternatives,
    recomputed,
    slow_words,
    waited_us,
)
from plans.order import node_count
from plans.runlog import RunLog
from plans.schema import Plan
from plans.timing import device_times, of_kind, runs
from profiles.units import show_us

COMPUTE, AGAIN, BESIDE = "computes", "computes again for backward", "no round: loads, stores, idle"
_ENDS = {
    "ok": "The run ended well",
    "partial": "The run ended without some tasks",
    "failed": "The run failed",
    "interrupted": "The run was interrupted",
    "killed": "The run was killed",
}


@dataclass(frozen=True)
class Table:
    """Rows, the first of them the names of the columns, and a line below."""

    title: str
    rows: Rows
    note: str = ""


_LOSSES = 4  # tasks whose loss is told for each run


@dataclass(frozen=True)
class Second:
    """Shares of a device's time, in parts of a million: what it does, by name."""

    device: str
    shares: Mapping[str, int]


@dataclass(frozen=True)
class Report:
    """verdict: in one sentence; host: its store as planned; words: what `show` says."""

    title: str
    verdict: str
    timeline: Timeline
    seconds: tuple[Second, ...]
    tables: tuple[Table, ...]
    curves: Mapping[str, Mapping[str, curves.Curve]]  # of each run by its name, of each task
    host: Steps
    words: str
    commands: tuple[str, ...]


def report(
    plan: Plan,
    plan_sha256: str,
    logs: Sequence[RunLog] = (),
    names: Sequence[str] = ("PLAN", "RUN"),
    *,
    going: bool = False,
    others: Mapping[str, Sequence[RunLog]] | None = None,
) -> Report:
    """About a plan, and a run of it by its logs, oldest first, the last of which is compared.
    names: of both files. going: a log without an end is of a run that goes on. others: logs of
    other runs by their names, to set beside it.

    FormatError when a last log is of another plan."""
    log = logs[-1] if logs else None
    every = {names[1]: logs, **(others or {})}
    found = compare(plan, log, plan_sha256) if log else None
    events = sorted(_events(log), key=lambda event: event[0]) if log else []
    tables = [
        Table("Devices", device_rows(plan)),
        Table("A steady round, on average of its devices", _rounds(plan)),
        Table("What no plan can beat", bounds(plan), _BOUNDS),
        Table("Other ways that were tried", _alternatives(plan)),
    ]
    if found and log:
        of = compared(found)
        missing = [f"{len(found.missing)} planned ops are not in the log"] * bool(found.missing)
        tables += [
            *([Table("Runs", _runs(plan, plan_sha256, every))] if others else []),
            Table("The run against its plan", of.whole, ". ".join(missing)),
            Table("Kinds of ops", of.kinds),
            Table("Tasks", of.tasks),
            Table("Devices in the run", of.devices, " ".join(slow_words(found))),
            Table("Events", [("at", "what"), *((show_us(us), what) for us, what in events)]),
        ]
    tables.append(Table("Where it comes from", _provenance(plan, plan_sha256, log)))
    return Report(
        title=f"{', '.join(task.name for task in plan.tasks[:4])}{' …' * (len(plan.tasks) > 4)}",
        verdict=verdict(plan, found, going=going),
        timeline=timeline(plan, log, tuple(events)),
        seconds=tuple(_seconds(plan)),
        tables=tuple(table for table in tables if len(table.rows) > 1),
        curves={name: curves.curves(own) for name, own in every.items()},
        host=host_memory(plan) if node_count(plan) == 1 else (),
        words=describe(plan, rounds=False),
        commands=_commands(plan, names, ran=log is not None),
    )


def _runs(plan: Plan, plan_sha256: str, every: Mapping[str, Sequence[RunLog]]) -> Rows:
    """The table of runs: the end of each, and the latest loss of some tasks."""
    tasks = [task.name for task in plan.tasks[:_LOSSES]]
    rows: Rows = [("run", "status", "after", "against the plan", *(f"loss of {t}" for t in tasks))]
    for name, logs in every.items():
        found = compare(plan, logs[-1], plan_sha256)
        late = f"{found.makespan_error:+.1%}"
        losses = {step.task: step.loss for step in logs[-1].steps}
        told = (_number(losses.get(task)) for task in tasks)
        rows.append((name, found.status, show_us(found.makespan.actual or 0), late, *told))
    return rows


_BOUNDS = "gap: the part of the planned time that lies above the bound; the largest bound counts"


def verdict(plan: Plan, found: Comparison | None, *, going: bool = False) -> str:
    """The run against the plan, and the plan against the best possible, in a sentence."""
    told = plan.prediction
    bound = f"{told.lower_bound_name} bound {show_us(told.lower_bound_us)}"
    best = f"of which at most {told.gap_ppm / 1e4:.1f} % could be saved by any plan ({bound})"
    source = plan.emulated or ("estimated times" if plan.estimated else "")
    if found is None:
        tasks, devices = len(plan.tasks), len(plan.devices)
        what = f"{tasks} task{'s' * (tasks > 1)} on {devices} device{'s' * (devices > 1)}"
        paced = f" ({source})" if source else ""
        return f"The plan trains {what} in {show_us(told.makespan_us)}{paced}, {best}."
    whole, short = found.makespan, bool(found.missing or found.dropped)
    actual = f"after {show_us(whole.actual or 0)}" + f" ({source})" * bool(source)
    planned = f"{found.makespan_error:+.1%} against {show_us(whole.predicted)} planned"
    slow = f"; device {found.slow[0]} was furthest behind" if found.slow else ""
    rest = " for what it did" if short else f", {best}"
    ended = "The run goes on" if going and found.status == "killed" else _ENDS[found.status]
    return f"{ended} {actual}, {planned}{rest}{slow}."


def _seconds(plan: Plan) -> Iterator[Second]:
    """By the plan's times: the waits of rounds by what ends them, and all that is beside rounds."""
    spent = [Counter[str]() for _ in plan.devices]

    @cache
    def of_round(name: str, kind: int) -> list[Counter[str]]:
        program = of_kind(plan.program(name), kind)
        found = waited_us(program)
        for op in [] if program.evaluates else recomputed(plan, program):
            found[op.queue.device][AGAIN] += op.us
        return found

    for segment in plan.segments:
        for kind, rounds in runs(segment):
            for number, own in zip(segment.devices, of_round(segment.program, kind), strict=True):
                spent[number].update({what: rounds * us for what, us in own.items()})
    whole = max(plan.prediction.makespan_us, 1)
    for device, own, used in zip(plan.devices, spent, device_times(plan), strict=True):
        rest = whole - used.compute_us - (own.total() - own[AGAIN])
        parts = {COMPUTE: used.compute_us - own[AGAIN], AGAIN: own.pop(AGAIN, 0)}
        parts |= dict(sorted(own.items())) | {BESIDE: rest}
        yield Second(device.name, {what: us * 10**6 // whole for what, us in parts.items()})


def _rounds(plan: Plan) -> Rows:
    """The parts of a round of each program that trains."""
    rows: Rows = [("program", "what", "time", "of a round")]
    for program in plan.programs:
        parts = parts_of_round(plan, program) if not program.evaluates else {}
        whole = max(program.period_us, 1)
        rows += [
            (program.name, part, show_us(us), f"{us / whole:.1%}")
            for part, us in sorted(parts.items(), key=lambda item: -item[1])
            if us * 1000 >= whole
        ]
    return rows


def _alternatives(plan: Plan) -> Rows:
    ways = [(one.task, *alternative_row(one)) for one in ranked_alternatives(plan)]
    return [("task", *ALTERNATIVE), *ways]


def _events(log: RunLog) -> Iterator[tuple[int, str]]:
    """All that the log tells beside ops and losses."""
    for saved in log.checkpoints:
        yield saved.at_us, f"{saved.task}: checkpoint after step {saved.step}"
    for judged in log.evaluations:
        values = {"loss": judged.loss, **judged.metrics}
        told = ", ".join(f"{name} {_number(value)}" for name, value in values.items())
        yield judged.at_us, f"{judged.task}: evaluated after step {judged.step}: {told}"
    for drop in log.drops:
        where = f" in {drop.op}" if drop.op else ""
        yield drop.at_us, f"{drop.task}: dropped in step {drop.step}{where}: {drop.reason}"
    for stop in log.stops:
        yield stop.at_us, f"{stop.task}: stopped after step {stop.step} by {stop.rule}"
    for again in log.restarts:
        yield again.at_us, f"began again: {again.error or 'it had been killed'}"
    if log.end:
        yield log.end.actual_us, f"{log.end.status}{log.end.error and ': '}{log.end.error}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _provenance(plan: Plan, plan_sha256: str, log: RunLog | None) -> Rows:
    """Hashes of files, options, the search and, of a run, when and with what it was."""
    solver = plan.solver
    rows = [("sha256 of the plan", plan_sha256)]
    rows += [(f"sha256 of its {role}", digest) for role, digest in plan.inputs.items()]
    rows += [(f"built with {name}", value) for name, value in plan.provenance.items()]
    rows.append(("built by", f"{solver.policy}, seed {solver.seed}, search {solver.status}"))
    if log:
        rows += [("run started", log.header.started), ("devices", ", ".join(log.header.devices))]
        rows += list(log.header.software.items())
    return [("what", "value"), *rows]


def _commands(plan: Plan, names: Sequence[str], *, ran: bool) -> tuple[str, ...]:
    """The commands that make the same plan, run and report again; a plan tells of no microbatch,
    correction or earlier run that was given."""
    path, run = map(shlex.quote, names)
    profiles = sum(role.startswith("profile") for role in plan.inputs)
    budgets = {device.budget_bytes for device in plan.devices}
    told = dict(plan.provenance)
    if "nodes" not in told:
        told["devices"] = str(len(plan.devices)) if profiles < 2 else "COUNTS"
    if len(budgets) == 1:
        told["device-memory"] = f"{min(budgets)}B"
    flags = "".join(_flag(*option) for option in {**told, "seed": str(plan.solver.seed)}.items())
    return (
        f"python -m planner build{' PROFILE' * max(profiles, 1)}{flags} -o {path}",
        f"python -m planner check {path}",
        *([f"python -m executor run {path} -o {run}"] if ran else []),
        f"python -m planner report {path}{f' {run}' if ran else ''} -o report.html",
    )


def _flag(name: str, value: str) -> str:
    """An option as a plan tells of it, as it is typed: `start a` of task a."""
    flag, _, task = name.partition(" ")
    typed = value.replace(" bytes/s", "B/s").replace(" us", "us")
    return f" --{flag} {shlex.quote(f'{task}={typed}' if task else typed)}"
