"""A task with lengths as its plan has it: its program, the kinds of its steps, its table."""

from dataclasses import dataclass, replace
from pathlib import Path

from planner.inputs import Effort
from planner.search import Candidate
from planner.sequences.asked import Asked
from planner.sequences.bounds import compute_us, dispatch_us, judged_us
from planner.sequences.choose import Wanted, best
from plans.prediction import Bound
from plans.schema import Lengths
from plans.timing import Runs


@dataclass(frozen=True)
class Planned:
    """turns: the kinds of the steps in turn. lengths: what the plan says of them. bound: of any
    plan on so many devices; mix_us: of any on these pipelines."""

    candidate: Candidate
    turns: Runs
    lengths: Lengths
    bound: Bound
    mix_us: int


def planned(asked: Asked, wanted: Wanted, table: Path, jobs: int, effort: Effort) -> Planned:
    """The shortest way found, with its table in this file. Infeasible or NoPlanFound otherwise."""
    made, tried = best(asked, wanted, table, jobs, effort)
    said, laid = asked.task.lengths, made.arrangement
    assert said
    candidate = Candidate(
        made.round.strategy,
        (made.program,),
        len(tried),
        effort.left > 0,
        alternatives=tuple(tried),
    )
    lengths = Lengths(said.sha256, said.samples, laid.table, padded=made.how == "pad")
    pool = replace(made.trial, strategy=made.round.strategy).pool  # in the modes of its rounds
    devices = made.trial.way.mix.devices
    bound = Bound("compute", compute_us(asked, devices) + judged_us(asked, devices))
    return Planned(candidate, laid.turns, lengths, bound, dispatch_us(asked, pool))
