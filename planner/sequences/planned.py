"""A task with lengths as a plan has it: its program, the kinds of its steps, its table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.bounds import compute_us, dispatch_us
from planner.inputs import DeviceGroup, Effort, Problem
from planner.lowering import PipelineStrategy
from planner.packing import PACKINGS, How, LengthsTask, write_table
from planner.search import Candidate, Evaluations, Packed
from planner.sequences.choose import Best, best_by_lengths
from planner.sequences.evaluations import evaluations
from planner.sequences.made import InTurn, Made, in_common
from planner.sequences.switching import switched
from plans.prediction import Alternative
from plans.schema import Lengths
from profiles.schema import Task


def planned(
    problem: Problem,
    tables: Path,
    jobs: int,
    given: tuple[DeviceGroup, Task, int],
    lengths: Sequence[NDArray[np.uint32]],
    devices: int,
    effort: Effort,
) -> Candidate:
    """The shortest way found on so many devices, with its tables in this folder. Infeasible or
    NoPlanFound otherwise.

    given: the kind of devices, the task, and what it may have on the host. lengths: of its samples,
    and of those of its evaluation. All else is as the problem says, whose own lengths are not used.
    """
    kind, task, host_bytes = given
    own, held, *_ = *lengths, None
    asked = LengthsTask(
        *(task, own, kind, host_bytes, problem.done.get(task.name, 0)),
        held_out=held,
        devices=devices,
        layout=problem.layout,
        hows=_hows(problem, task),
        order=problem.order,
    )
    one = best_by_lengths(asked, jobs, effort)
    found = InTurn([one.made])
    on_a_node = devices <= (kind.node or devices)  # state stays there
    if len(problem.tasks) == 1 and not problem.layout and on_a_node:
        found = switched(asked, one, jobs, effort)
    strategy = in_common([way.round.strategy for way in found.ways])
    evaluates, said = (None, None) if held is None else evaluations(asked, strategy, tables)
    tried = _alternatives(asked, found, one)
    return Candidate(
        strategy,
        (found.ways[0].program,),
        len(tried),
        effort.left > 0,
        (evaluates,) if evaluates else (),
        alternatives=tuple(tried),
        packed=_packed(problem, asked, found, strategy, tables, said),
    )


def _hows(problem: Problem, task: Task) -> tuple[How, ...]:
    """The ways to pack that are looked at."""
    if task.lengths and task.lengths.why_not:
        return ("alone",)
    return PACKINGS if problem.packing == "auto" else (problem.packing,)


def _packed(
    problem: Problem,
    asked: LengthsTask,
    found: InTurn,
    strategy: PipelineStrategy,
    tables: Path,
    evaluated: Evaluations | None,
) -> Packed:
    """All steps, whose table is written."""
    task, order = asked.task, problem.orders.get(asked.task.name)
    assert task.lengths
    table, several = tables / f"{task.name}.{asked.devices}", len(found.ways) > 1
    laid = [way.arrangement for way in found.ways]
    said = Lengths(
        *(task.lengths.sha256, task.lengths.samples, write_table(table, laid, order)),
        padded=found.ways[0].how == "pad",
        reordered=problem.reorder_window if order is not None else 0,
        token_draws=asked.token_draws(strategy.shards),
    )
    least, turns = dispatch_us(asked, found.pools), () if several else laid[0].turns
    return Packed(turns, said, table, least, found.parts if several else (), evaluated)


def _alternatives(asked: LengthsTask, found: InTurn, best: Best) -> list[Alternative]:
    """All that got rounds, those that are in the plan first."""
    pair = found.ways if len(found.ways) > 1 else ()
    least = best.judged.us * found.us / best.made.us
    told = [_alternative(asked, one, said=_steps(asked, one)) for one in pair]
    for one in best.tried:
        longer = f"{max(0.0, one.us / least - 1):.1%} longer"
        told.append(_alternative(asked, one, longer if pair or one is not best.judged else ""))
    return sorted(told, key=lambda one: (one.why_not != "", one.period_us))


def _steps(asked: LengthsTask, one: Made) -> str:
    """The steps of one of several ways."""
    longest = max(int(asked.step(number).max()) for number in one.arrangement.steps)
    return f", {one.steps:,} steps of at most {longest:,} tokens"


def _alternative(asked: LengthsTask, one: Made, why_not: str = "", said: str = "") -> Alternative:
    way, strategy = one.trial.way, one.round.strategy
    return Alternative(
        task=asked.task.name,
        devices=way.layout.devices,
        layout=str(way.layout),
        order=f"{strategy.named}, {one.how}{one.padding}{said}",
        microbatch=strategy.costs.microbatch,
        recompute=sum(m.activations == "recompute" for m in strategy.modes[:-1]),
        period_us=one.us // one.steps,
        bound_us=compute_us(asked, way.layout.devices) // asked.task.steps,
        peak_bytes=one.round.device_bytes,
        why_not=why_not,
    )
