"""A task with lengths as a plan has it: its program, the kinds of its steps, its table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.inputs import Effort, Kind, Layout, PackingName
from planner.packing import How
from planner.search import Candidate, Packed
from planner.sequences.asked import Asked
from planner.sequences.bounds import dispatch_us
from planner.sequences.choose import Wanted, best
from planner.sequences.mix import Mix
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
    tables: Path,
    jobs: int = 1,
) -> Candidate:
    """The shortest way found on so many devices, with its table in this folder. Infeasible or
    NoPlanFound otherwise.

    asked: the kind of devices, the task, and what it may have on the host. layout, packing: those
    that are looked at, by default all.
    """
    kind, task, host_bytes = asked
    mine, said = Asked(task, lengths, kind, host_bytes), task.lengths
    assert said
    table = tables / f"{task.name}.{devices}"
    made, tried = best(mine, wanted(task, devices, layout, packing), table, jobs, effort)
    laid, strategy = made.arrangement, made.round.strategy
    pool = replace(made.trial, strategy=strategy).pool  # in the modes of its rounds
    packed = Packed(
        laid.turns,
        Lengths(said.sha256, said.samples, laid.table, padded=made.how == "pad"),
        table,
        dispatch_us(mine, pool),
    )
    return Candidate(
        strategy,
        (made.program,),
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
