"""Plans for many memory budgets and links: one per case, and the budget where more stops helping.

step        time of a step once the run is steady (the period; see `plans.timing.step_us` for
            many tasks, and for those whose samples have lengths)
spill tax   step / step with memory for everything at once, over the same link
bottleneck  the resource that is busy for the largest share of a period: compute, h2d, d2h, host
knee        the smallest budget of a line (a link and a choice of microbatch) whose step is within
            KNEE of the line's shortest: beyond it memory buys next to nothing
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from planner.builder import build
from planner.errors import Infeasible, NoPlanFound
from planner.inputs import Problem, costs_at, only_microbatch, override
from planner.shards import TaskCosts
from planner.sweep_table import KNEE, Line, Offer, Sweep, SweepOutcome, SweepRow
from plans.ops import Stream
from plans.schema import Plan
from plans.timing import busy_us, device_times, kind_rounds, kinds_of, longest, rounds_us, step_us
from profiles.codec import align
from profiles.errors import FormatError
from profiles.schema import Profile, Task

Link = tuple[int | None, int | None]  # h2d and d2h alone, bytes per second; None: as profiled
Lengths = Mapping[str, NDArray[np.uint32]]


@dataclass(frozen=True)
class Setting:
    """Settings of every plan of a sweep: devices, host memory (None: as profiled), time, seed."""

    devices: int = 1
    host_bytes: int | None = None
    seconds: float = 60.0
    seed: int = 0


def sweep(
    profile: Profile,
    budgets: Iterable[int],
    links: Sequence[Link] = ((None, None),),
    microbatches: Sequence[int | None] = (None,),
    setting: Setting = Setting(),
    lengths: Lengths | None = None,
) -> Sweep:
    """A plan for every budget in bytes, over every link, with every choice of microbatch.

    lengths: of samples, as `profiles.lengths.load` reads them, of tasks where they have some.
    FormatError for a microbatch size that was not measured, or that a task with lengths has not.
    """
    ordered = sorted(set(budgets))
    lines = [
        override(only_microbatch(profile, size) if size else profile, h2d=h2d, d2h=d2h)
        for (h2d, d2h), size in product(links, microbatches)
    ]
    sizes = [size for _, size in product(links, microbatches)]
    found = list[SweepRow]()
    total = len(lines) * (len(ordered) + 1)
    with tqdm(total=total, unit="plan", disable=None, file=sys.stderr) as bar:
        for changed, size in zip(lines, sizes, strict=True):
            line = _line(changed, size)
            for budget in (*ordered, in_memory_bytes(changed)):
                found.append(_row(changed, line, budget, setting, lengths or {}))
                bar.update()
    every, size = list(no_longer(found)), len(ordered) + 1
    each = (every[at : at + size] for at in range(0, total, size))
    rows = (row for *own, roomy in each for row in judged(own, roomy))
    return Sweep(tuple(rows), profile.estimated, profile.emulated)


def in_memory_bytes(profile: Profile) -> int:
    """Bytes of a device that keeps all of its task: parameters, gradients, state, and of every
    microbatch the batch and the graph, at the size that takes most; the most of any task, beside
    all tasks' module buffers. Of samples that have lengths every one is as long as the longest."""
    buffers = sum(layer.buffer_bytes for task in profile.tasks for layer in task.layers)
    return buffers + max(
        costs.total("param_bytes")
        + costs.total("grad_bytes")
        + costs.total("state_bytes")
        + costs.task.norm_bytes
        + costs.microbatches * (costs.batch_bytes + costs.total("saved"))
        + costs.backward_transient(0, len(costs.layers))
        for task in profile.tasks
        for costs in _sizes(task)
    )


def _sizes(task: Task) -> list[TaskCosts]:
    """The task in microbatches of every size; with lengths, a whole step in one."""
    if not task.lengths:
        return [TaskCosts(task, batch.microbatch) for batch in task.batches]
    said = (task.lengths, task.evaluation_lengths)
    tokens = align(task.batch * max(one.longest for one in said if one))
    return [TaskCosts(costs_at(task, tokens), tokens, count=1)]


def _line(profile: Profile, microbatch: int | None) -> Line:
    rates = {link.kind: link.alone.bytes_per_s for link in profile.machine.devices[0].links}
    return Line(rates["h2d"], rates["d2h"], microbatch)


def _row(profile: Profile, line: Line, budget: int, setting: Setting, lengths: Lengths) -> SweepRow:
    problem = Problem.of(
        profile, devices=setting.devices, device_bytes=budget, host_bytes=setting.host_bytes
    )
    problem = replace(problem, lengths=lengths)
    try:
        with TemporaryDirectory() as folder:  # for tables; neither they nor the plan are kept
            plan = build(
                problem,
                profile_sha256="0" * 64,
                seconds=setting.seconds,
                seed=setting.seed,
                output=Path(folder) / "plan.json",
            )
    except Infeasible as error:
        return SweepRow(line, budget, None, str(error), error.smallest or None)
    except NoPlanFound as error:
        return SweepRow(line, budget, None, str(error))
    return SweepRow(line, budget, outcome(plan))


def offers(
    profiles: Mapping[str, Profile], prices: Mapping[str, float], setting: Setting
) -> Iterator[Offer]:
    """Those of GPUs with a profile each, of the same task. FormatError for the price of none."""
    for name in prices.keys() - profiles.keys():
        known = ",".join(profiles)
        raise FormatError(f"--price {name}: is not among the GPUs {known}; add it to --gpu")
    for name, profile in profiles.items():
        budget = profile.machine.devices[0].usable_bytes
        (row,) = sweep(profile, [budget], setting=setting).rows
        yield Offer(name, row, max(task.steps for task in profile.tasks), prices.get(name))


def outcome(plan: Plan) -> SweepOutcome:
    """The outcome of a case, from its plan."""
    kind, busy = bottleneck(plan)
    return SweepOutcome(
        step_us=step_us(plan),
        bottleneck=kind,
        busy=busy,
        gap=plan.prediction.gap_ppm / 1e6,
        peak_bytes=max(device.peak_bytes for device in device_times(plan)),
        host_bytes=plan.host.bytes,
        layout=_layout(plan),
    )


def bottleneck(plan: Plan) -> tuple[str, float]:
    """The kind of stream (compute, h2d, d2h, p2p, host) that is busiest in the program that runs
    longest, and for which share of its steady time."""
    program, busy = longest(plan), Counter[Stream]()
    for kind, rounds in zip(kinds_of(program), kind_rounds(plan, program), strict=True):
        for stream, us in busy_us(kind.ops).items():
            busy[stream] += rounds * us
    own = [segment for segment in plan.segments if segment.program == program.name]
    stream, us = busy.most_common(1)[0]
    return str(stream.lane), us / max(1, sum(rounds_us(program, segment) for segment in own))


def _layout(plan: Plan) -> str:
    """The layout of the task whose program runs longest, or its mixes and packing; empty where
    there was but one way."""
    mine = longest(plan).tasks
    ways = [way for way in plan.solver.alternatives if way.task in mine and not way.why_not]
    packing = {way.order.split(", ")[1] for way in ways if ", " in way.order}
    return ", ".join([" and ".join(way.layout for way in ways), *packing])


def judged(rows: Sequence[SweepRow], roomy: SweepRow) -> list[SweepRow]:
    """A line's rows, budgets ascending, with the knee marked and the tax reckoned. The line's
    shortest step is one that memory for everything allows."""
    steps = [row.outcome.step_us for row in rows if row.outcome]
    best = min(steps, default=0)
    free = min([*steps, roomy.outcome.step_us]) if roomy.outcome else None
    near = [r for r in rows if r.outcome and r.outcome.step_us <= best * (1 + KNEE)]
    return [
        replace(
            row,
            spill_tax=row.outcome.step_us / free if row.outcome and free else None,
            knee=row in near[:1],
        )
        for row in rows
    ]


def no_longer(rows: Sequence[SweepRow]) -> Iterator[SweepRow]:
    """The rows, each with the shortest outcome of those that have no more: what fits a small budget
    fits a large one, and takes no longer over a faster link."""
    for row in rows:
        able = (one.outcome for one in rows if one.outcome and _has_no_more(one, row))
        best = min(able, key=lambda one: (one.step_us, one != row.outcome), default=None)
        yield replace(row, outcome=best, problem="", smallest_bytes=None) if best else row


def _has_no_more(one: SweepRow, other: SweepRow) -> bool:
    """True if no memory and no link of one is larger or faster, with the same microbatches."""
    slow, fast = one.line, other.line
    return (
        one.device_bytes <= other.device_bytes
        and slow.h2d_bytes_per_s <= fast.h2d_bytes_per_s
        and slow.d2h_bytes_per_s <= fast.d2h_bytes_per_s
        and slow.microbatch == fast.microbatch
    )
