"""A task with lengths as a plan has it: its program, the kinds of its steps, its table."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.inputs import Effort, Kind, Layout, PackingName
from planner.packing import How, write_table
from planner.search import Candidate, Packed
from planner.sequences.asked import Asked
from planner.sequences.bounds import dispatch_us
from planner.sequences.choose import Wanted, best
from planner.sequences.made import InTurn, in_common
from planner.sequences.mix import Mix
from planner.sequences.switching import switched
from planner.sequences.told import told
from plans.schema import Lengths
from profiles.schema import Task


def planned(
    asked: tuple[Kind, Task, int],
    lengths: NDArray[np.uint32],
    devices: int,
    effort: Effort,
    *,
    layout: Layout | None = None,
    packing: PackingName = "auto",
    window: int = 1,
    alone: bool = True,
    done: Mapping[str, int] | None = None,
    tables: Path,
    jobs: int = 1,
) -> Candidate:
    """The shortest way found on so many devices, with its table in this folder. Infeasible or
    NoPlanFound otherwise.

    asked: the kind of devices, the task, and what it may have on the host. layout, packing: those
    that are looked at, by default all. window: steps between which samples may move. alone: the
    task is the only one, so that its segments may switch between mixes. done: steps that tasks were
    trained before, by name.
    """
    kind, task, host_bytes = asked
    before = (done or {}).get(task.name, 0)
    mine = Asked(task, lengths, kind, host_bytes, before, min(window, task.steps))
    said, looked = task.lengths, wanted(task, devices, layout, packing)
    assert said
    one = best(mine, looked, jobs, effort)
    found = InTurn([one.made])
    if alone and not layout and mine.window == 1:  # samples would move from mix to mix
        found = switched(mine, one.made, one.trials, one.mixes, jobs, effort)
    ways = found.ways
    strategy = in_common([way.round.strategy for way in ways])
    table = tables / f"{task.name}.{devices}"
    sha256 = write_table(table, [way.arrangement for way in ways])
    packed = Packed(
        () if found.parts else one.made.arrangement.turns,
        Lengths(
            *(said.sha256, said.samples, sha256),
            padded=one.made.how == "pad",
            window=mine.window,
            token_draws=mine.token_draws(strategy.shards),
        ),
        table,
        dispatch_us(mine, found.pools),
        found.parts,
    )
    tried = told(mine, found, one.made, one.judged, one.tried)
    return Candidate(
        strategy,
        (ways[0].program,),
        len(tried),
        effort.left > 0,
        alternatives=tuple(tried),
        packed=packed,
    )


def wanted(task: Task, devices: int, layout: Layout | None, packing: PackingName) -> Wanted:
    """The mixes and packings that are looked at on so many devices."""
    found = [Mix((layout.depth,) * layout.replicas[0])] if layout else []
    how: How | None = None if packing == "auto" else packing
    return Wanted(devices, found, "alone" if task.lengths and task.lengths.why_not else how)
