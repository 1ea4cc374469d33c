"""Steps of a task with lengths, divided among segments: by their time, or by their programs."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from planner.search.packed import Packed, StepRun
from plans.schema import Lengths, Memory, Op, Program, RoundKind
from plans.timing import Runs

OP = Op("a.s0.B0", "0.compute", 0, 1)
ONE = Program("a", (Memory(1, 1),), ("a",), 0, 10, 10, 0, (), (), (OP,), ())
KINDS = structs.replace(ONE, kinds=(RoundKind((256,), 70, 70, (OP,)),))
SAID = Lengths("0" * 64, 1, "0" * 64)

runs = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=4)


@given(runs)
def test_pieces_of_unlike_steps_end_when_their_mean_says(turns: list[tuple[int, int]]) -> None:
    """To half a step, wherever they are cut; all of them together have all steps."""
    packed = Packed(tuple(turns), SAID, Path(), 0)
    each = [70 if kind else 10 for kind, rounds in turns for _ in range(rounds)]
    counts = range(len(each) + 1)
    reached = [one.rounds for count in counts for one in packed.between(KINDS, 0, count)]
    assert reached == sorted(reached)
    assert reached[-1] == len(each)
    for count, steps in enumerate(reached):
        off = sum(each[:steps]) - sum(each) * count / len(each)
        assert abs(off) <= max(each[max(0, steps - 1) : steps + 1]) / 2 + 1


@given(st.lists(runs, min_size=2, max_size=4), st.data())
def test_pieces_of_several_programs_have_each_step_once(
    every: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    """In the same kind of round of the same program, wherever they are cut."""
    programs = [structs.replace(KINDS, name=f"a.{n}") for n in range(len(every))]
    parts = tuple(
        StepRun(program, sum(rounds for _, rounds in own), tuple(own))
        for program, own in zip(programs, every, strict=True)
    )
    packed, whole = Packed((), SAID, Path(), 0, parts), sum(one.rounds for one in parts)
    cuts = sorted(data.draw(st.sets(st.integers(1, whole - 1), max_size=3))) if whole > 1 else []
    found = [
        one for a, b in pairwise([0, *cuts, whole]) for one in packed.between(programs[0], a, b)
    ]
    assert steps(found) == steps(parts)


def steps(parts: list[StepRun] | tuple[StepRun, ...]) -> list[tuple[str, int]]:
    """The program and the kind of every step."""

    def kinds(turns: Runs) -> list[int]:
        return [kind for kind, rounds in turns for _ in range(rounds)]

    assert all(len(kinds(one.kinds)) == one.rounds for one in parts)
    return [(one.program.name, kind) for one in parts for kind in kinds(one.kinds)]
