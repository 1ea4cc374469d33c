"""Edges from reads and writes, against a brute-force closure."""

from hypothesis import given
from hypothesis import strategies as st

from planner.hazards import dependencies, link
from planner.timeline import Entry
from plans.schema import Op

STREAMS = ["0.compute", "0.h2d", "0.d2h", "host.0"]


@st.composite
def rounds(draw: st.DrawFn) -> list[Entry]:
    """Ops in an order of meaning, on random streams, reading and writing random buffers."""
    buffers = st.sampled_from(["a", "b", "c"])
    entries = []
    for i in range(draw(st.integers(1, 8))):
        reads = {"param": draw(buffers)} if draw(st.booleans()) else {}
        writes = {"param": draw(buffers)} if draw(st.booleans()) else {}
        stream = draw(st.sampled_from(STREAMS))
        entries.append(Entry(Op(f"t.s0.P{i}", stream, 0, 0, reads=reads, writes=writes), 1))
    return entries


def closure(entries: list[Entry], laps: int) -> set[tuple[str, int, str, int]]:
    """All (x, round, y, round) with x before y by stream order and `after`, in `laps` rounds."""
    pairs = set()
    for lap in range(laps):
        tail: dict[str, str] = {}
        for entry in entries:
            op = entry.op
            if op.stream in tail:
                pairs.add((tail[op.stream], lap, op.id, lap))
            tail[op.stream] = op.id
            for name in op.after:
                back = lap - name.endswith("@-1")
                if back >= 0:
                    pairs.add((name.removesuffix("@-1"), back, op.id, lap))
        for stream, last in tail.items():
            first = next(e.op.id for e in entries if e.op.stream == stream)
            if lap + 1 < laps:
                pairs.add((last, lap, first, lap + 1))
    nodes = {(x, i) for x, i, _, _ in pairs} | {(y, j) for _, _, y, j in pairs}
    reach = {n: {(y, j) for x, i, y, j in pairs if (x, i) == n} for n in nodes}
    changed = True
    while changed:
        changed = False
        for followers in reach.values():
            more = set().union(*(reach[f] for f in followers)) - followers if followers else set()
            changed |= bool(more)
            followers |= more
    return {(x, i, y, j) for (x, i), followers in reach.items() for y, j in followers}


@given(rounds())
def test_every_conflict_of_three_rounds_is_ordered_as_meant(entries: list[Entry]) -> None:
    """Stream order and edges together order any two ops of which one writes what both touch."""
    ordered = closure(link(entries), 3)
    runs = [(entry.op, lap) for lap in range(3) for entry in entries]
    for at, (left, i) in enumerate(runs):
        for right, j in runs[at + 1 :]:
            written = set(left.writes.values()) & (
                set(right.reads.values()) | set(right.writes.values())
            )
            written |= set(left.reads.values()) & set(right.writes.values())
            if written:
                assert (left.id, i, right.id, j) in ordered


@given(rounds())
def test_no_edge_is_implied_by_the_others(entries: list[Entry]) -> None:
    """Leaving out any edge changes what is ordered, once the rounds are in full swing."""
    linked = link(entries)
    full = closure(linked, 4)
    for at, entry in enumerate(linked):
        for name in entry.op.after:
            fewer = tuple(a for a in entry.op.after if a != name)
            op = Op(
                **{f: getattr(entry.op, f) for f in entry.op.__struct_fields__} | {"after": fewer}
            )
            assert closure([*linked[:at], Entry(op, 1), *linked[at + 1 :]], 4) != full


def test_the_previous_round_is_named_with_its_distance() -> None:
    """An op that overwrites what the round before read waits for that reader, at -1."""
    write = Entry(Op("t.s0.P0", "0.h2d", 0, 0, writes={"param": "a"}), 1)
    read = Entry(Op("t.s0.F0", "0.compute", 0, 0, reads={"param": "a"}), 1)
    assert dependencies([write, read]) == [[(0, 1), (1, 1)], [(0, 0)]]
    assert [entry.op.after for entry in link([write, read])] == [("t.s0.F0@-1",), ("t.s0.P0",)]
