"""Ops of a round: what they are called, what they wait for, against a brute-force closure, and who
has which bytes of the slab, looked at step by step."""

import random
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import small, some_choice

from planner.lowering import DeviceRound
from planner.lowering.link_windows import Clock
from planner.lowering.round import lay_out
from planner.rounds.hazards import dependencies, pruned
from planner.rounds.ops import Entry, queued
from planner.rounds.slab import Slab, bytes_alive
from planner.rounds.timeline import Needs
from planner.shards.shard_cost import Links
from planner.shards.values import Into, Out, Value
from plans.ops import Lane, OpKind, OpName, Stream, parse_id
from plans.schema import Buffer
from profiles.schema import Rate


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


@settings(max_examples=60)
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


@given(st.integers(0, 10**6))
def test_a_name_is_written_as_it_is_read(seed: int) -> None:
    """Every op of a round has a name of its own, which its text says in full."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 6))
    strategy = some_choice(case, rng)
    entries = DeviceRound(strategy, case.links).entries
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(parse_id(str(entry.name)) == entry.name for entry in entries)


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


@given(rounds())
def test_no_edge_is_implied_by_the_others(entries: list[Entry]) -> None:
    """Leaving out any edge changes what is ordered, once the rounds are in full swing."""
    needs = linked(entries)
    full = closure(entries, needs, 4)
    for at, edges in enumerate(needs):
        for dep in edges:
            fewer = [*needs[:at], [e for e in edges if e != dep], *needs[at + 1 :]]
            assert closure(entries, fewer, 4) != full


def test_an_op_waits_for_the_reader_of_the_round_before() -> None:
    """An op that overwrites what the round before read waits for that reader, one round back."""
    h2d, compute = Stream(0, Lane.H2D), Stream(0, Lane.COMPUTE)
    write = Entry(OpName("t", "s", 0, OpKind.PREFETCH, 0), h2d, 1, {}, {"param": "a"})
    read = Entry(OpName("t", "s", 0, OpKind.FORWARD, 0), compute, 1, {"param": "a"}, {})
    assert dependencies([write, read]) == [[-2, -1], [0]]
    assert linked([write, read]) == [[-1], [0]]
