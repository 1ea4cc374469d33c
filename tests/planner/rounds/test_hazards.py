"""Edges from reads and writes, against a brute-force closure."""

from hypothesis import given
from hypothesis import strategies as st

from planner.rounds.hazards import dependencies, pruned
from planner.rounds.ops import Entry, queued
from planner.rounds.timeline import Needs
from plans.ops import Lane, OpKind, OpName, Stream

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
