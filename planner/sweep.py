"""Plans for many memory budgets and links: one per case, and the budget where more stops helping.

step        time of a step once the run is steady (the period; see `step_us` for many tasks)
spill tax   step / step with memory for everything at once, over the same link
bottleneck  the resource that is busy for the largest share of a period: compute, h2d, d2h, host
knee        the smallest budget of a line (a link and a choice of microbatch) whose step is within
            KNEE of the line's shortest: beyond it memory buys next to nothing
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tqdm import tqdm

from planner.builder import build
from planner.curves import KNEE, Line, Outcome, Row, Sweep
from planner.errors import Infeasible, NoPlanFound
from planner.inputs import Problem, only_microbatch, override
from planner.shards import TaskCosts
from plans.schema import Plan, Program
from plans.timing import longest, steady_us
from profiles.schema import Profile

Link = tuple[int | None, int | None]  # h2d and d2h alone, bytes per second; None: as profiled


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
) -> Sweep:
    """A plan for every budget in bytes, over every link, with every choice of microbatch.

    FormatError for a microbatch size that was not measured.
    """
    ordered = sorted(set(budgets))
    lines = [
        override(only_microbatch(profile, size) if size else profile, h2d=h2d, d2h=d2h)
        for (h2d, d2h), size in product(links, microbatches)
    ]
    sizes = [size for _, size in product(links, microbatches)]
    rows: list[Row] = []
    total = len(lines) * (len(ordered) + 1)
    with tqdm(total=total, unit="plan", disable=None, file=sys.stderr) as bar:
        for changed, size in zip(lines, sizes, strict=True):
            line = _line(changed, size)
            found = []
            for budget in (*ordered, in_memory_bytes(changed)):
                found.append(_row(changed, line, budget, setting))
                bar.update()
            rows += judged(found[:-1], found[-1])
    return Sweep(tuple(rows), profile.estimated, profile.emulated)


def in_memory_bytes(profile: Profile) -> int:
    """Bytes of a device that keeps all of its task: parameters, gradients, state, and of every
    microbatch the batch and the graph, at the size that takes most; the most of any task, beside
    all tasks' module buffers."""
    buffers = sum(layer.buffer_bytes for task in profile.tasks for layer in task.layers)
    return buffers + max(
        costs.total("param_bytes")
        + costs.total("grad_bytes")
        + costs.total("state_bytes")
        + costs.task.norm_bytes
        + costs.microbatches * (costs.batch_bytes + costs.total("saved"))
        + costs.backward_transient(0, len(costs.layers))
        for task in profile.tasks
        for costs in (TaskCosts(task, batch.microbatch) for batch in task.batches)
    )


def _line(profile: Profile, microbatch: int | None) -> Line:
    rates = {link.kind: link.alone.bytes_per_s for link in profile.machine.devices[0].links}
    return Line(rates["h2d"], rates["d2h"], microbatch)


def _row(profile: Profile, line: Line, budget: int, setting: Setting) -> Row:
    problem = Problem.of(
        profile,
        devices=setting.devices,
        device_bytes=budget,
        host_bytes=setting.host_bytes,
    )
    try:
        plan = build(
            problem, profile_sha256="0" * 64, seconds=setting.seconds, seed=setting.seed
        )  # the plan is not kept
    except Infeasible as error:
        return Row(line, budget, None, str(error), error.smallest or None)
    except NoPlanFound as error:
        return Row(line, budget, None, str(error))
    return Row(line, budget, outcome(plan))


def outcome(plan: Plan) -> Outcome:
    """The outcome of a case, from its plan."""
    kind, busy = bottleneck(longest(plan))
    return Outcome(
        step_us=step_us(plan),
        bottleneck=kind,
        busy=busy,
        gap=plan.prediction.gap_ppm / 1e6,
        peak_bytes=max(device.peak_bytes for device in plan.prediction.devices),
        host_bytes=plan.host.bytes,
    )


def step_us(plan: Plan) -> int:
    """Steady time of the busiest device, per step of the task with the most steps: with one task
    its period."""
    busy = [0] * len(plan.devices)
    for segment in plan.segments:
        us = steady_us(plan.program(segment.program), segment)
        for device in segment.devices:
            busy[device] += us
    return max(busy) // max(task.steps for task in plan.tasks)


def bottleneck(program: Program) -> tuple[str, float]:
    """The kind of stream (compute, h2d, d2h, p2p, host) that is busiest, and for which share of
    a period."""
    busy: dict[str, int] = {}
    for op in program.round:
        busy[op.stream] = busy.get(op.stream, 0) + op.end_us - op.start_us
    stream = max(busy, key=lambda name: busy[name])
    kind = "host" if stream.startswith("host") else stream.partition(".")[2]
    return kind, busy[stream] / max(1, program.period_us)


def judged(rows: Sequence[Row], roomy: Row) -> list[Row]:
    """A line's rows with the knee marked and the tax reckoned.

    What fits a small budget fits a large one, so the line's shortest step is one that memory for
    everything allows, even where the search did not find it there.
    """
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
