"""Ops from visits: where they run, and that each device has its own buffers and streams."""

import random
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from support.strategies import small, some_choice

from planner.lowering.turns import sweep
from planner.lowering.walk import Walk
from planner.rounds.emit import Emitter, Visit
from planner.rounds.ops import Entry
from planner.shards.shard_cost import Links
from planner.shards.strategy import Strategy
from plans.ops import parse_id


def emitted(strategy: Strategy, links: Links, visits: Iterable[Visit]) -> list[Entry]:
    emitter = Emitter(strategy.costs, strategy.shards, strategy.modes, links)
    return list(emitter.entries(visits))


@given(st.integers(0, 10**6), st.booleans())
def test_every_op_is_on_the_device_of_its_visit(seed: int, norms: bool) -> None:
    """Shards visited on a device each: what computes a shard, what copies for it and the device
    buffers of both are there, and nothing but devices changes."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 6), norms=norms)
    strategy = some_choice(case, rng)
    here = list(Walk(strategy, sweep(strategy)).visits)
    there = [visit._replace(device=3 + visit.shard) for visit in here]
    one, several = (emitted(strategy, case.links, order) for order in (here, there))
    assert [e.name for e in one] == [e.name for e in several]
    for old, new in zip(one, several, strict=True):
        if new.name.item == "s":
            assert new.stream.device == 3 + new.name.number
        assert (old.stream.device, old.us) == (0, new.us)
        for before, after in ((old.reads, new.reads), (old.writes, new.writes)):
            moved = {r: b.replace("0/", f"{new.stream.device}/", 1) for r, b in before.items()}
            assert moved == after


@given(st.integers(0, 10**6))
def test_a_name_is_written_as_it_is_read(seed: int) -> None:
    """Every op of a round has a name of its own, which its text says in full."""
    rng = random.Random(seed)
    case = small(seed, rng.randint(1, 6))
    strategy = some_choice(case, rng)
    entries = emitted(strategy, case.links, Walk(strategy, sweep(strategy)).visits)
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(parse_id(str(entry.name)) == entry.name for entry in entries)
