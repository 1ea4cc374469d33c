"""A task with lengths as a plan has it: its program, the kinds of its steps, its table."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.bounds import compute_us, dispatch_us
from planner.inputs import Effort, Kind, Layout, PackingName
from planner.packing import PACKINGS, Asked, How, write_table
from planner.search import Candidate, Packed
from planner.sequences.choose import best
from planner.sequences.judging import judged
from planner.sequences.made import InTurn, Made, in_common
from planner.sequences.switching import switched
from plans.prediction import Alternative
from plans.schema import Lengths
from profiles.schema import Task


def planned(
    asked: tuple[Kind, Task, int],
    lengths: Sequence[NDArray[np.uint32]],
    devices: int,
    effort: Effort,
    *,
    layout: Layout | None = None,
    packing: PackingName = "auto",
    window: int = 1,
    orders: Mapping[str, NDArray[np.uint32]] | None = None,
    alone: bool = True,
    done: Mapping[str, int] | None = None,
    tables: Path,
    jobs: int = 1,
) -> Candidate:
    """The shortest way found on so many devices, with its tables in this folder. Infeasible or
    NoPlanFound otherwise.

    asked: the kind of devices, the task, and what it may have on the host. lengths: of its samples,
    and of those of its evaluation. layout, packing: those that are looked at, by default all.
    orders: of tasks, by name, whose samples were reordered within windows of so many steps. alone:
    the task is the only one, so that its segments may switch between mixes. done: steps that tasks
    were trained before, by name.
    """
    kind, task, host_bytes = asked
    own, held, *_ = *lengths, None
    before = (done or {}).get(task.name, 0)
    assert task.lengths
    hows: tuple[How, ...] = PACKINGS if packing == "auto" else (packing,)
    hows = ("alone",) if task.lengths.why_not else hows
    mine = Asked(
        *(task, own, kind, host_bytes, before),
        judged=held,
        devices=devices,
        layout=layout,
        hows=hows,
    )
    one = best(mine, jobs, effort)
    found = InTurn([one.made])
    if alone and not layout and devices <= (kind.node or devices):  # state stays on its node
        found = switched(mine, one, jobs, effort)
    ways = found.ways
    strategy = in_common([way.round.strategy for way in ways])
    judges = judged(mine, strategy, tables) if len(lengths) > 1 else None
    table = tables / f"{task.name}.{devices}"
    order = (orders or {}).get(task.name)
    sha256 = write_table(table, [way.arrangement for way in ways], order)
    packed = Packed(
        () if len(ways) > 1 else one.made.arrangement.turns,
        Lengths(
            *(task.lengths.sha256, task.lengths.samples, sha256),
            padded=one.made.how == "pad",
            reordered=window if order is not None else 0,
            token_draws=mine.token_draws(strategy.shards),
        ),
        table,
        dispatch_us(mine, found.pools),
        found.parts if len(ways) > 1 else (),
        judges.said if judges else None,
    )
    tried = _alternatives(mine, found, one.made, one.judged, one.tried)
    return Candidate(
        strategy,
        (ways[0].program,),
        len(tried),
        effort.left > 0,
        (judges.program,) if judges else (),
        alternatives=tuple(tried),
        packed=packed,
    )


def _alternatives(
    asked: Asked, way: InTurn, alone: Made, judged: Made, tried: Iterable[Made]
) -> list[Alternative]:
    """All of them, those that are in the plan first. alone, judged: the one that is shortest for
    all steps, and the same for those by which ways are judged."""
    pair = way.ways if len(way.ways) > 1 else ()
    least = judged.us * way.us / alone.us
    found = [_alternative(asked, one, said=_steps(asked, one)) for one in pair]
    for one in tried:
        longer = f"{max(0.0, one.us / least - 1):.1%} longer"
        found.append(_alternative(asked, one, longer if pair or one is not judged else ""))
    return sorted(found, key=lambda one: (one.why_not != "", one.period_us))


def _steps(asked: Asked, one: Made) -> str:
    """The steps of one of several ways."""
    longest = max(int(asked.step(number).max()) for number in one.arrangement.steps)
    return f", {one.steps:,} steps of at most {longest:,} tokens"


def _alternative(asked: Asked, one: Made, why_not: str = "", said: str = "") -> Alternative:
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
