"""Kinds of rounds: all that follows from run lengths is as if each round were written out."""

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.kinded import MOST, kinded

from plans import timing
from plans.order import Reached, rest, task_runs
from plans.schema import Op, Plan, Program, Segment
from plans.timing import RoundKinds, Runs, joined, kinds_of, of_kind, part, runs, scaled

KINDS = [[MOST, MOST], [256], [MOST, 256]]


def each(whole: Runs) -> list[int]:
    """The kind of every round."""
    return [kind for kind, rounds in whole for _ in range(rounds)]


def packed(kinds: list[int]) -> Runs:
    return tuple((kind, len(list(same))) for kind, same in groupby(kinds))


RUNS = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(packed)


def made(whole: Runs, name: str = "streamed") -> tuple[Plan, Program, Segment]:
    plan = kinded(name, KINDS, whole)
    return plan, plan.programs[0], plan.segments[0]


@given(RUNS, st.integers(0, 9), st.integers(0, 9))
def test_a_part_has_the_kinds_of_its_rounds(whole: Runs, first: int, rounds: int) -> None:
    """In their order, without two runs of one kind in a row."""
    some = part(whole, first, rounds)
    assert each(some) == each(whole)[first : first + rounds]
    assert all(count for _, count in some)
    assert all(one[0] != other[0] for one, other in pairwise(some))


@given(RUNS, st.integers(0, 9))
def test_parts_are_joined_to_the_whole(whole: Runs, first: int) -> None:
    """Wherever it was cut, also within a run."""
    behind = part(whole, first, len(each(whole)))
    assert joined([*part(whole, 0, first), *behind]) == whole


@given(RUNS)
def test_the_kind_of_any_round_is_found(whole: Runs) -> None:
    """Of a segment without kinds it is 0."""
    _, _, segment = made(whole)
    kinds = RoundKinds(segment)
    assert [kinds[n] for n in range(segment.rounds)] == each(whole)
    bare = replace(segment, kinds=())
    assert runs(bare) == ((0, segment.rounds),)
    assert RoundKinds(bare)[segment.rounds - 1] == 0


def test_bytes_are_those_of_the_tokens() -> None:
    """Exactly where tokens are multiples of 256, never too few."""
    assert [scaled(4096 * 3, tokens, 1024) for tokens in (256, 512, 1024)] == [3072, 6144, 12288]
    assert scaled(10, 256, 1024) == 3


def test_a_program_of_one_kind_has_its_round_and_no_others() -> None:
    """Kind 0 is the program's own round."""
    _, program, _ = made(((0, 1),))
    for number, kind in enumerate(kinds_of(program)):
        one = of_kind(program, number)
        assert (one.round, one.tokens, one.kinds) == (kind.ops, kind.tokens, ())
        assert (one.period_us, one.round_us) == (kind.period_us, kind.round_us)
    assert kinds_of(program)[0].ops == program.round


def written_out(program: Program, segment: Segment) -> list[tuple[int, int, int, Op]]:
    """Start, end, round and op of every op, round after round."""
    found = [(op.start_us, op.end_us, 0, op) for op in program.enter]
    at, number = program.enter_us, 0
    kinds = each(segment.kinds)
    for n, kind in enumerate(kinds):
        one = kinds_of(program)[kind]
        found += [(at + op.start_us, at + op.end_us, number, op) for op in one.ops]
        last = n + 1 == len(kinds) or kinds[n + 1] != kind
        at, number = at + (one.round_us if last else one.period_us), number + 1
    return found + [(at + op.start_us, at + op.end_us, 0, op) for op in program.leave]


@given(RUNS)
def test_times_are_those_of_rounds_one_by_one(whole: Runs) -> None:
    """Rounds of a kind overlap; a run begins when the one before it has ended, leave behind all."""
    plan, program, segment = made(whole)
    wanted = sorted(written_out(program, segment), key=str)
    found = [(p.start_us, p.end_us, p.round, p.op) for p in timing.timeline(plan)]
    assert sorted(found, key=str) == wanted
    end = max(end for _, end, _, _ in wanted)
    assert end == timing.duration_us(program, segment.rounds, segment.kinds) == segment.end_us


@given(RUNS)
def test_devices_are_predicted_as_from_all_ops(whole: Runs) -> None:
    """Compute and exposed copies of all rounds, whatever their kinds."""
    plan, program, segment = made(whole)
    ops = [(op.stream, start, end) for start, end, _, op in written_out(program, segment)]
    (device,) = timing.device_times(plan)
    assert device.exposed_copy_us == timing.exposed_copy_us(ops).get(0, 0)
    assert device.compute_us == sum(b - a for name, a, b in ops if name == "0.compute")


@given(RUNS, st.data())
def test_what_is_left_has_the_kinds_that_were_to_come(whole: Runs, data: st.DataObject) -> None:
    """Steps count on from those that are done."""
    plan, _, segment = made(whole)
    done = data.draw(st.integers(0, segment.rounds - 1))
    left = rest(plan, Reached({"a": done}))
    assert each(runs(left.segments[0])) == each(whole)[done:]
    steps = [(run.first + n, run.kind) for run in task_runs(left, "a") for n in range(run.steps)]
    assert steps == list(enumerate(each(whole)))[done:]
