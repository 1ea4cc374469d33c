"""A task with lengths as its plan has it: its program, the kinds of its steps, its table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.inputs import Effort
from planner.packing import write_table
from planner.search import Candidate
from planner.sequences.asked import Asked
from planner.sequences.bounds import compute_us, dispatch_us
from planner.sequences.choose import Wanted, best
from planner.sequences.made import InTurn, Turn, in_common
from planner.sequences.switching import switched
from planner.sequences.told import told
from plans.prediction import Bound
from plans.schema import Lengths, Program


@dataclass(frozen=True)
class Planned:
    """programs: of all ways. turns: those of the steps. lengths: what the plan says of them. bound:
    of any plan on so many devices; mix_us: of any on these pipelines."""

    candidate: Candidate
    programs: Sequence[Program]
    turns: Sequence[Turn]
    lengths: Lengths
    bound: Bound
    mix_us: int


def planned(asked: Asked, wanted: Wanted, table: Path, jobs: int, effort: Effort) -> Planned:
    """The shortest way found, with its table in this file. Infeasible or NoPlanFound otherwise."""
    one = best(asked, wanted, jobs, effort)
    found = InTurn([one.made])
    if not wanted.mixes and asked.window == 1:  # samples would move from mix to mix
        found = switched(asked, one.made, one.trials, one.mixes, jobs, effort)
    tried = told(asked, found, one.made, one.judged, one.tried)
    said, ways = asked.task.lengths, found.ways
    assert said
    programs = tuple(one.program for one in ways)
    candidate = Candidate(
        in_common([one.round.strategy for one in ways]),
        programs,
        len(tried),
        effort.left > 0,
        alternatives=tuple(tried),
    )
    sha256 = write_table(table, [one.arrangement for one in ways])
    lengths = Lengths(
        *(said.sha256, said.samples, sha256),
        padded=ways[0].how == "pad",
        window=asked.window,
        token_draws=asked.token_draws(candidate.strategy.shards),
    )
    bound = Bound("compute", compute_us(asked, ways[0].trial.way.mix.devices))
    return Planned(
        candidate, programs, found.turns, lengths, bound, dispatch_us(asked, found.pools)
    )
