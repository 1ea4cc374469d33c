"""Every op of every round on its device, at its time; phases, and unions of intervals."""

from collections.abc import Iterable
from itertools import combinations, groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import timetables
from support.kinded import MOST, kinded

from plans import timing
from plans.order import Reached, rest, task_runs
from plans.schema import Op, Plan, Program, Segment
from plans.timing import RoundKinds, Runs, kinds_of, of_kind, part, runs
from plans.timing.intervals import uncovered

MANY = ([[512, 512], [256]], tuple((n % 2, 2) for n in range(40)))  # runs of two kinds of rounds


def test_timeline_has_every_op_of_every_round_on_its_device() -> None:
    """Rounds repeat a period apart, and enter and leave happen once each."""
    plan = timetables.plan(rounds=4)
    program = plan.programs[2]
    mine = [p for p in timing.timeline(plan) if p.segment == 1]
    assert len(mine) == 4 * len(program.round) + 2
    assert {p.stream for p in mine} == {"1.compute", "1.h2d", "1.d2h", "host.1"}
    starts = [p.start_us for p in mine if p.op.id == "d.s0.F1"]
    assert [b - a for a, b in pairwise(starts)] == [program.period_us] * 3
    assert max(p.end_us for p in mine) == plan.segments[1].end_us


@pytest.mark.parametrize("plan", [timetables.plan(rounds=4), kinded("streamed", *MANY)])
def test_bars_repeated_are_the_timeline(plan: Plan) -> None:
    """An op's bar of a run of rounds stands for the op in each of them, a period apart."""
    repeated = sorted(
        (bar.segment, bar.round + number, bar.op.id, bar.stream, bar.start_us + us, bar.end_us + us)
        for bar in timing.op_bars(plan)
        for number in range(bar.rounds)
        for us in [number * bar.period_us]
    )
    single = [
        (bar.segment, bar.round, bar.op.id, bar.stream, bar.start_us, bar.end_us)
        for bar in timing.timeline(plan)
    ]
    assert repeated == sorted(single)


def test_bars_of_a_window_leave_out_runs_of_rounds_beyond_it() -> None:
    """Of many runs of different kinds only those that are seen, each op at its time."""
    plan = kinded("streamed", *MANY)
    low = next(p.start_us for p in timing.timeline(plan) if p.round == 30)
    high = next(p.start_us for p in timing.timeline(plan) if p.round == 31)
    found = list(timing.op_bars(plan, (low, high)))
    seen = {
        (p.start_us, p.us) for p in timing.timeline(plan) if low < p.end_us and p.start_us < high
    }
    starts = {(b.start_us + n * b.period_us, b.us) for b in found for n in range(b.rounds)}
    assert seen <= starts
    assert len(found) < len(list(timing.op_bars(plan))) // 10


Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def _points(spans: Iterable[tuple[int, int]]) -> set[int]:
    return {point for start, end in spans for point in range(start, end)}


@given(SPANS)
def test_union_covers_the_same_points_disjointly(spans: Spans) -> None:
    """Merged intervals ascend with gaps between them and hold exactly the points given."""
    merged = timing.union(spans)
    assert _points(merged) == _points(spans)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(SPANS)
def test_overlaps_are_pairs_with_points_in_common(spans: Spans) -> None:
    """Each pair of spans once, the one that begins later second."""
    found = [
        (one[2], other[2]) for one, other in timing.overlaps((*s, n) for n, s in enumerate(spans))
    ]
    common = {
        frozenset(pair)
        for pair in combinations(range(len(spans)), 2)
        if _points([spans[pair[0]]]) & _points([spans[pair[1]]])
    }
    assert {*map(frozenset, found)} >= common
    assert all(spans[one] <= spans[other] for one, other in found)
    assert len(found) == len({*map(frozenset, found)})


@given(SPANS, SPANS)
def test_uncovered_counts_points_outside_the_cover(spans: Spans, cover: Spans) -> None:
    """The uncovered length is the number of points in the intervals and not in the cover."""
    assert uncovered(spans, cover) == len(_points(spans) - _points(cover))


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


@given(RUNS)
def test_the_kind_of_any_round_is_found(whole: Runs) -> None:
    """Of a segment without kinds it is 0."""
    _, _, segment = made(whole)
    kinds = RoundKinds(segment)
    assert [kinds[n] for n in range(segment.rounds)] == each(whole)
    bare = replace(segment, kinds=())
    assert runs(bare) == ((0, segment.rounds),)
    assert RoundKinds(bare)[segment.rounds - 1] == 0


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
    plan, _, segment = made(whole)
    done = data.draw(st.integers(0, segment.rounds - 1))
    left = rest(plan, Reached({"a": done}))
    assert each(runs(left.segments[0])) == each(whole)[done:]
    steps = [(run.first + n, run.kind) for run in task_runs(left, "a") for n in range(run.steps)]
    assert steps == list(enumerate(each(whole)))[done:]
