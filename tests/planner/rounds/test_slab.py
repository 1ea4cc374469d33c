"""Ops of a round: what they are called, what they wait for, against a brute-force closure, and who
has which bytes of the slab, looked at step by step."""

from dataclasses import dataclass
from functools import cache
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import synthetic
from support.unrolled import duration, periodic, positions, unrolled

from planner import Problem, build
from planner.inputs.problem import Policy
from planner.lowering.link_windows import Clock
from planner.lowering.round import lay_out
from planner.rounds.hazards import dependencies, pruned
from planner.rounds.ops import Entry, queued
from planner.rounds.slab import Longer, Slab, bytes_alive, stretched
from planner.rounds.timeline import Deadlock, Needs, once
from planner.shards.shard_cost import Links
from planner.shards.values import Into, Out, Value
from plans.ops import Lane, OpKind, OpName, Stream
from plans.schema import Buffer, Op, Program
from profiles.schema import Rate

pytestmark = pytest.mark.usefixtures("quick")


@dataclass(frozen=True)
class Costs:
    """As many microbatches."""

    microbatches: int
    noted: bool = False


@dataclass(frozen=True)
class Strategy:
    """As urgent, and as many microbatches."""

    costs: Costs
    urgent: bool


@dataclass(frozen=True)
class Lives:
    """Stands in for slots: any values, in a round of so many slots of 1 ms each."""

    count: int
    values: tuple[Value, ...]
    strategy: Strategy

    @property
    def us(self) -> tuple[int, ...]:
        return (1000,) * self.count


@st.composite
def strategies(draw: st.DrawFn) -> Lives:
    """Values that wrap around the end of the round, in parts, all the time, moved or not."""
    steps = draw(st.integers(1, 7))
    lives: list[Value] = []
    for number in range(draw(st.integers(0, 7))):
        first = draw(st.integers(0, steps - 1))
        last = first + draw(st.integers(0, steps - 1))
        parts, moved = draw(st.integers(1, 3)), draw(st.integers(0, 4096))
        size = parts * 256 * draw(st.integers(0, 4))
        steady, after = draw(st.booleans()), draw(st.sampled_from([v.name for v in lives] or [""]))
        into = Into(first, moved, last + 1 - steps, after, steady) if draw(st.booleans()) else None
        out = Out(last % steps, last + steps, moved, draw(st.integers(0, 2000)), steady)
        leaves = out if draw(st.booleans()) else None
        lives.append(Value(f"v{number}", size, first, last, parts, into, leaves))
    strategy = Strategy(Costs(draw(st.integers(1, 4))), draw(st.booleans()))
    return Lives(steps, tuple(lives), strategy)


def links() -> Links:
    """A byte takes a µs."""
    rate = Rate(1_000_000, 0)
    return Links(rate, rate, rate, rate)


def laid_out(of: Lives, room: int) -> Slab:
    clock = Clock(of.strategy, of.us, links(), of.values)  # type: ignore[arg-type]
    return lay_out(clock, room)


def spans(slab: Slab) -> dict[str, tuple[int, int]]:
    """The bytes of every buffer."""
    return {b.name: (b.offset, b.offset + b.bytes) for b in slab.buffers}


def buffers_of(value: Value, slab: Slab) -> list[Buffer]:
    return [b for b in slab.buffers if b.name.split(".")[0] == f"0/{value.name}"]


def alive(value: Value, step: int, steps: int) -> bool:
    return any((at - step) % steps == 0 for at in range(value.first, value.last + 1))


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@given(strategies(), st.integers(0, 8000))
def test_values_alive_at_one_step_share_no_byte(of: Lives, room: int) -> None:
    """Also when loads begin earlier than they must, and what leaves stays longer."""
    slab = laid_out(of, room)
    where = spans(slab)
    for step in range(of.count):
        there = [v for v in of.values if v.bytes and alive(v, step, of.count)]
        names = [b.name for v in there for b in buffers_of(v, slab)]
        for one, other in combinations(names, 2):
            assert not overlap(where[one], where[other]), (step, one, other)


@given(strategies())
def test_every_value_has_its_bytes_and_the_slab_ends_with_the_last(of: Lives) -> None:
    """Parts are equal buffers; the most bytes alive at once are those of the fullest step."""
    slab = laid_out(of, 0)
    for value in of.values:
        assert sum(b.bytes for b in buffers_of(value, slab)) == value.bytes
        assert len({b.bytes for b in buffers_of(value, slab)}) <= 1
        assert len(buffers_of(value, slab)) == (value.parts if value.bytes else 0)
    assert slab.bytes == max((end for _, end in spans(slab).values()), default=0)
    live = [sum(v.bytes for v in of.values if alive(v, s, of.count)) for s in range(of.count)]
    assert max(live) == max(bytes_alive(of.values, of.count)) <= slab.bytes


@given(strategies(), st.integers(0, 8000))
def test_longer_lives_take_only_room_that_is_there(of: Lives, room: int) -> None:
    """The slab is within the room, or the least that does without."""
    least = laid_out(of, 0).bytes
    assert laid_out(of, room).bytes <= max(least, room)


def test_lives_are_stretched_into_much_less_where_a_little_less_does_not_do() -> None:
    """With b a step longer all would fit by bytes, but not beside each other, in 24 to 16."""
    values = [Value("a", 8, 2, 3), Value("b", 13, 0, 0), Value("c", 3, 1, 1)]
    longer = [Longer("a", later=2), Longer("b", later=1), Longer("c", later=1)]
    laid = stretched(values, 3, 23, lambda: longer)
    assert {life.value.name: life.last for life in laid.placed} == {"a": 3, "b": 0, "c": 2}
    assert laid.bytes == 21


def test_lives_are_as_long_as_others_leave_them_bytes() -> None:
    """Not only as long as all bytes alive at a step, with gaps between them, are within the room:
    then b and d would lie above each other in the lowest bytes, and be no longer than they must."""
    values = [Value("a", 5, 2, 2), Value("b", 4, 1, 1), Value("c", 6, 0, 0), Value("d", 6, 5, 5)]
    longer = [Longer("a", later=2), Longer("b", later=2), Longer("d", later=2)]
    laid = stretched(values, 6, 12, lambda: longer)
    assert {life.value.name: life.last for life in laid.placed} == {"a": 4, "b": 3, "c": 0, "d": 6}
    assert laid.bytes == 12


@given(strategies())
def test_who_had_the_bytes_last_is_known(of: Lives) -> None:
    """Going back step by step from where a value begins, the first one met in each of its bytes."""
    slab = laid_out(of, 0)
    where = spans(slab)
    for value in of.values:
        for mine in buffers_of(value, slab):
            for at in range(mine.offset, mine.offset + mine.bytes, 256):
                last = _owner_before(of, slab, value, (at, at + 256))
                if last:
                    assert last in slab.before.get(mine.name, []), (mine.name, at)
    assert all(
        overlap(where[mine], where[theirs])
        for mine, others in slab.before.items()
        for theirs in others
    )


def _owner_before(of: Lives, slab: Slab, value: Value, piece: tuple[int, int]) -> str | None:
    """The buffer that had these bytes when `value`, which has them next, was not yet alive."""
    for back in range(1, of.count):
        for other in of.values:
            if alive(other, value.first - back, of.count):
                for theirs in buffers_of(other, slab):
                    if overlap(spans(slab)[theirs.name], piece):
                        return None if other is value else theirs.name
    return None


STREAMS = [Stream(0, Lane.COMPUTE), Stream(0, Lane.H2D), Stream(0, Lane.D2H), Stream(0, Lane.HOST)]

Run = tuple[int, int]  # an op and its round


@st.composite
def rounds(draw: st.DrawFn) -> list[Entry]:
    """Ops in an order of meaning, on random streams, reading and writing random buffers."""
    buffers = st.sampled_from(["a", "b", "c"])
    entries = []
    for i in range(draw(st.integers(1, 8))):
        reads = {"param": draw(buffers)} if draw(st.booleans()) else {}
        writes = {"param": draw(buffers)} if draw(st.booleans()) else {}
        name = OpName("t", "s", 0, OpKind.PREFETCH, i)
        entries.append(Entry(name, draw(st.sampled_from(STREAMS)), 1, reads, writes))
    return entries


def linked(entries: list[Entry]) -> Needs:
    """The edges that are kept, streams being in the order of meaning."""
    return pruned(queued(entries), dependencies(entries))


def closure(entries: list[Entry], needs: Needs, laps: int) -> set[tuple[Run, Run]]:
    """All pairs of ops and their rounds of which the first comes before the second, by stream order
    and edges, in so many rounds."""
    pairs = set()
    for lap in range(laps):
        tail: dict[Stream, int] = {}
        for at, entry in enumerate(entries):
            if entry.stream in tail:
                pairs.add(((tail[entry.stream], lap), (at, lap)))
            tail[entry.stream] = at
            for dep in needs[at]:
                other = lap * len(entries) + dep
                if other >= 0:
                    pairs.add((divmod(other, len(entries))[::-1], (at, lap)))
        for stream, last in tail.items():
            first = next(at for at, e in enumerate(entries) if e.stream == stream)
            if lap + 1 < laps:
                pairs.add(((last, lap), (first, lap + 1)))
    nodes = {one for pair in pairs for one in pair}
    reach = {n: {other for one, other in pairs if one == n} for n in nodes}
    changed = True
    while changed:
        changed = False
        for followers in reach.values():
            more = set().union(*(reach[f] for f in followers)) - followers if followers else set()
            changed |= bool(more)
            followers |= more
    return {(one, other) for one, followers in reach.items() for other in followers}


@given(rounds())
def test_every_conflict_of_three_rounds_is_ordered_as_meant(entries: list[Entry]) -> None:
    """Stream order and edges together order any two ops of which one writes what both touch."""
    ordered = closure(entries, linked(entries), 3)
    runs = [(entry, (at, lap)) for lap in range(3) for at, entry in enumerate(entries)]
    for place, (left, one) in enumerate(runs):
        for right, other in runs[place + 1 :]:
            written = set(left.writes.values()) & (
                set(right.reads.values()) | set(right.writes.values())
            )
            written |= set(left.reads.values()) & set(right.writes.values())
            if written:
                assert (one, other) in ordered


@settings(max_examples=12)
@given(rounds())
def test_no_edge_is_implied_by_the_others(entries: list[Entry]) -> None:
    """Leaving out any edge changes what is ordered, once the rounds are in full swing."""
    needs = linked(entries)
    full = closure(entries, needs, 4)
    for at, edges in enumerate(needs):
        for dep in edges:
            fewer = [*needs[:at], [e for e in edges if e != dep], *needs[at + 1 :]]
            assert closure(entries, fewer, 4) != full


def entry(name: str, stream: str, us: int, *after: str) -> Op:
    return Op(f"t.s0.{name}", stream, 0, us, after=tuple(f"t.s0.{a}" for a in after))


@st.composite
def random_rounds(draw: st.DrawFn) -> list[Op]:
    """Random ops on up to three streams with edges that never close a circle in a round."""
    count = draw(st.integers(1, 9))
    entries = []
    for i in range(count):
        after = draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else []
        late = draw(st.lists(st.integers(0, count - 1), max_size=2))
        names = [f"P{a}" for a in sorted(set(after))] + [f"P{a}@-1" for a in sorted(set(late))]
        stream = draw(st.sampled_from(["0.compute", "0.h2d", "0.d2h"]))
        entries.append(entry(f"P{i}", stream, draw(st.integers(0, 20)), *names))
    return entries


@given(random_rounds())
def test_the_period_is_the_growth_rate_of_the_unrolled_execution(entries: list[Op]) -> None:
    """No valid period is shorter than the long-run growth, and ours is at most 1 µs above it."""
    phase = periodic(entries)
    starts = unrolled(entries, 200)
    growth = max(starts[199][n] - starts[99][n] for n in starts[0]) / 100
    assert growth - 1e-9 <= phase.period_us
    if len({starts[199][n] - starts[198][n] for n in starts[0]}) == 1:
        assert phase.period_us <= growth + 1


@given(random_rounds())
def test_periodic_times_respect_every_order_in_every_round(entries: list[Op]) -> None:
    """Closed-form times never start an op before what it waits for has ended."""
    phase = periodic(entries)
    at = {op.id: op for op in phase.ops}
    last: dict[str, Op] = {}
    first: dict[str, Op] = {}
    for op in phase.ops:
        if op.stream in last:
            assert op.start_us >= last[op.stream].end_us
        first.setdefault(op.stream, op)
        last[op.stream] = op
        for name in op.after:
            other = at[name.removesuffix("@-1")]
            assert op.start_us >= other.end_us - (phase.period_us if "@" in name else 0)
    for stream, op in first.items():
        assert op.start_us + phase.period_us >= last[stream].end_us


@given(random_rounds(), st.integers(1, 20))
def test_no_run_takes_longer_than_the_closed_form(entries: list[Op], count: int) -> None:
    """The closed form is an upper bound on the first `count` rounds of any program."""
    phase = periodic(entries)
    took = {op.id: duration(op) for op in entries}
    end = max(start + took[name] for name, start in unrolled(entries, count)[-1].items())
    assert end <= (count - 1) * phase.period_us + phase.span_us


def test_a_circle_is_named() -> None:
    """Two ops that wait for each other are a deadlock, not a hang."""
    circle = [entry("P0", "0.h2d", 1, "P1"), entry("P1", "0.d2h", 1, "P0")]
    with pytest.raises(Deadlock, match=r"\[0, 1\]"):
        once([duration(op) for op in circle], *positions(circle))


@cache
def programs(policy: Policy, budget_mib: int) -> tuple[Program, ...]:
    """Of two tasks that share a device, one with more microbatches."""
    tasks = [
        synthetic.task("a", layers=6, steps=20),
        synthetic.task("b", layers=4, steps=20, batch=8),
    ]
    profile = synthetic.profile(*tasks, usable_bytes=budget_mib << 20)
    asked = Problem.of(profile, devices=1, device_bytes=None, host_bytes=None)
    return build(asked, profile_sha256="0" * 64, policy=policy).programs


@pytest.mark.parametrize("policy", ["gantry", "hydra"])
@pytest.mark.parametrize("budget_mib", [14, 20, 40])
@pytest.mark.parametrize("rounds", [1, 2, 12])
def test_the_closed_form_is_the_time_of_running_op_by_op(
    policy: Policy, budget_mib: int, rounds: int
) -> None:
    """(rounds - 1) periods and one round: exactly what the first `rounds` rounds take."""
    for program in programs(policy, budget_mib):
        took = {op.id: duration(op) for op in program.round}
        last = unrolled(program.round, rounds)[-1]
        end = max(start + took[name] for name, start in last.items())
        assert end == (rounds - 1) * program.period_us + program.round_us
