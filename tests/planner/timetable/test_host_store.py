"""Tasks that wait on the disk: what the checker says, times against an independent simulation,
places against brute force, messages with both numbers."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import handmade, synthetic
from support.cli import planner_cli, refused, succeeded
from support.disk_oracle import disk_harm
from support.disked import timed
from support.parts import Part, packed_part, resident_part, streamed_part
from support.retime import foretold
from support.stores import stores_of

import profiles
from planner import Infeasible, Problem, build
from planner.shards.values import extent, pack
from planner.timetable.host_store import housed
from planner.timetable.swaps import Tenant, Timed, Turn, rivals, swapped, ways
from planner.views.show import describe
from plans import Plan
from plans.checker.check import violations
from plans.order import kept_bytes, waiting
from plans.schema import Host
from profiles.schema import Disk, Rate

pytestmark = pytest.mark.usefixtures("quick")

HASH = "0" * 64
PROFILE = synthetic.profile(
    *(synthetic.task(name, layers=1) for name in "abcd"), usable_bytes=1 << 20
)
MB = 10**6


def problem(host_bytes: int, rate: int = MB, disk_bytes: int = 1 << 40) -> Problem:
    """A host of so many bytes with a disk of so many bytes per second."""
    found = Problem.of(PROFILE, devices=1, device_bytes=None, host_bytes=host_bytes)
    return replace(found, disk=Disk(disk_bytes, Rate(rate, 3), Rate(rate, 5)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Up to four handmade tasks, one to three segments each, on one or two devices."""
    make = st.sampled_from([streamed_part, resident_part, packed_part])
    parts: list[Part] = [draw(make)(name) for name in "abcd"[: draw(st.integers(2, 4))]]
    rounds: list[tuple[str, int]] = []
    for part in parts:
        left = part.task.steps
        while left:
            count = draw(st.integers(1, left))
            rounds.append((part.task.name, count))
            left -= count
    order = draw(st.permutations(rounds))
    devices = st.integers(0, draw(st.integers(0, 1)))
    runs = [(name, (draw(devices),), count) for name, count in order]
    assume(len(runs) < 9)
    return made(parts, runs)


def made(parts: Sequence[Part], runs: Sequence[tuple[str, tuple[int, ...], int]]) -> Plan:
    """A program for each part, in a host store as the planner packs it."""
    programs = [handmade.program(part.task.name, 1, [part]) for part in parts]
    plan = handmade.assemble(parts, programs, runs)
    buffers = pack(((b.name, b.bytes) for b in plan.host.buffers), "host")
    return structs.replace(plan, host=Host(extent(buffers), buffers))


def squeezed(plan: Plan, share: float, rate: int = MB, *, gather: bool = False) -> Plan:
    """The plan on a host between what the largest task needs and what all do."""
    stores = stores_of(plan)
    low, high = max(own.bytes for own in stores.values()), plan.host.bytes
    asked = problem(low + int(share * (high - low)), rate)
    return foretold(housed(asked, plan, stores, gather=gather))


@settings(max_examples=12)
@given(plans(), st.floats(0, 1), st.sampled_from([MB, 10 * MB, 1000 * MB]), st.booleans())
def test_what_is_planned_is_proven(plan: Plan, share: float, rate: int, gather: bool) -> None:
    """The checker finds nothing, bytes do as they should in any order that the plan leaves open,
    and no task runs sooner than with a larger host."""
    assert not violations(plan)
    found = squeezed(plan, share, rate, gather=gather)
    assert not violations(found)
    assert disk_harm(found) is None
    assert found.host.bytes <= found.host.budget_bytes
    if not gather:
        assert found.prediction.makespan_us >= plan.prediction.makespan_us


@settings(max_examples=12)
@given(plans(), st.floats(0, 1))
def test_everything_is_as_early_as_the_order_allows(plan: Plan, share: float) -> None:
    found = squeezed(plan, share)
    assert found.segments == timed(found).segments


def test_a_store_for_everything_changes_nothing() -> None:
    plan = handmade.fleet()
    assert housed(problem(1 << 20), plan, stores_of(plan)) == plan


def unit(us: int) -> Tenant:
    return Tenant(1, 1, us, us)


def lodged(turns: Sequence[Turn], tenants: dict[str, Tenant], room: int) -> list[Timed]:
    """The turns as the planner takes them."""
    found = (
        swapped([turns[at] for at in order], tenants, rivals(places, tenants))
        for order, places in ways(turns, tenants, room, 64)
    )
    return min(found, key=end)


def end(found: Sequence[Timed]) -> int:
    return max(one.end_us for one in found)


def moves(found: Sequence[Timed]) -> tuple[int, int]:
    """How many read, and how many write."""
    reads = sum(one.read_us is not None for one in found)
    return reads, sum(one.write_us is not None for one in found)


def shared_line(seed: int) -> tuple[list[Turn], dict[str, Tenant], int]:
    """Up to four tasks that take up to seven turns on one device, and room for one to three."""
    rng = Random(seed)
    drawn = [rng.choice("abcd") for _ in range(rng.randint(2, 7))]
    us = rng.choice([5, 1000])
    turns = [Turn(task, (0,), rng.randint(1, 30)) for task in drawn]
    return turns, {name: unit(us) for name in sorted(set(drawn))}, rng.randint(1, 3)


def test_hardly_any_other_places_are_sooner_done() -> None:
    """All ways to share a few bytes tried one by one: of 150 lines all but one in fifty end as
    soon as any of them, none half as late again. Places are given in one pass, not searched."""
    ratios = []
    for seed in range(150):
        turns, tenants, room = shared_line(seed)
        every = (
            dict(zip(tenants, at, strict=True)) for at in product(range(room), repeat=len(tenants))
        )
        best = min(end(swapped(turns, tenants, rivals(at, tenants))) for at in every)
        ratios.append(end(lodged(turns, tenants, room)) / best)
    assert sum(ratio > 1 for ratio in ratios) <= 3
    assert max(ratios) < 1.5


def test_a_split_task_is_gathered_where_the_disk_is_slow() -> None:
    """Three tasks wrapped around two devices: whole tasks need fewer moves."""
    parts = [resident_part(name, steps=6) for name in "abc"]
    plan = made(parts, [("b", (0,), 1), ("c", (1,), 6), ("a", (0,), 6), ("b", (1,), 5)])
    kept = squeezed(plan, 0, rate=MB // 10)
    gathered = squeezed(plan, 0, rate=MB // 10, gather=True)
    assert len(gathered.segments) == 3
    assert gathered.prediction.makespan_us < kept.prediction.makespan_us
    assert not violations(gathered)


def small(tasks: int, host_bytes: int, **changes: object) -> Problem:
    """Tasks of 12 MiB each (parameters and state), on two devices."""
    made = [synthetic.task(f"t{n}", layers=4, steps=20, heterogeneous=False) for n in range(tasks)]
    found = synthetic.problem(*made, usable_bytes=64 << 20, devices=2, host_bytes=host_bytes)
    rates = Rate(10**9, 100), Rate(10**9, 100)
    return replace(found, **{"disk": Disk(1 << 40, *rates), **changes})


def test_a_plan_with_a_disk_is_certified() -> None:
    """Built and proven; the makespan is that of the segments."""
    plan = build(small(6, 20 << 20), profile_sha256=HASH)
    assert waiting(plan)
    assert plan.host.bytes <= 20 << 20
    assert plan.prediction.makespan_us == max(segment.end_us for segment in plan.segments)


def test_without_a_disk_the_error_says_what_one_would_do() -> None:
    with pytest.raises(
        Infeasible, match=r"would do: (\d+) \(.*\), or (\d+) \(.*\) with a disk.*--disk DIR"
    ):
        build(small(6, 20 << 20, disk=None), profile_sha256=HASH)


def test_the_smallest_host_with_a_disk_is_the_smallest() -> None:
    """With it there is a plan, with a byte less there is none."""
    with pytest.raises(Infeasible, match="idle tasks can wait on the disk") as caught:
        build(small(3, 1000), profile_sha256=HASH)
    smallest = caught.value.smallest
    assert build(small(3, smallest), profile_sha256=HASH).host.bytes == smallest
    with pytest.raises(Infeasible):
        build(small(3, smallest - 1), profile_sha256=HASH)


def test_a_full_disk_is_named_with_both_numbers() -> None:
    narrow = Disk(1 << 20, Rate(10**9, 100), Rate(10**9, 100))
    with pytest.raises(Infeasible, match=r"1048576 bytes\); --disk-space that would do") as caught:
        build(small(6, 20 << 20, disk=narrow), profile_sha256=HASH)
    enough = structs.replace(narrow, usable_bytes=caught.value.smallest)
    plan = build(small(6, 20 << 20, disk=enough), profile_sha256=HASH)
    files = sum(kept_bytes(plan.task(name)) for name in waiting(plan))
    assert 0 < files <= caught.value.smallest


def shown() -> Plan:
    """Three tasks in a store for two, one after the other on one device."""
    parts = [resident_part(name, steps=6) for name in "abc"]
    return squeezed(made(parts, [(name, (0,), 6) for name in "abc"]), 0.5, rate=MB // 10)


def test_the_disk_has_a_line_of_its_own() -> None:
    line = next(line for line in describe(shown()).splitlines() if line.startswith("  disk: "))
    assert "2 task(s) wait there at times in 2.5 KiB; 1.2 KiB written, 1.2 KiB read" in line


def test_disk_space_is_a_size_or_nothing(tmp_path: Path) -> None:
    tasks = [synthetic.task(f"t{n}", layers=1, heterogeneous=False) for n in range(3)]
    bare = synthetic.profile(*tasks, usable_bytes=64 << 20)
    host = structs.replace(bare.machine.host, disk=Disk(1, Rate(10**9, 100), Rate(10**9, 100)))
    disked = structs.replace(bare, machine=structs.replace(bare.machine, host=host))
    profiles.save(tmp_path / "disked", disked)
    ask = ("-o", tmp_path / "plan.json", "--host-memory", "8MiB")
    found = planner_cli("build", tmp_path / "disked", *ask)
    refused(found, 3, "--disk-space that would do")
    refused(planner_cli("build", tmp_path / "disked", *ask, "--disk-space", 0), 3, "with a disk")
    succeeded(planner_cli("build", tmp_path / "disked", *ask, "--disk-space", "1GiB"))
    succeeded(planner_cli("check", tmp_path / "plan.json"))
    assert "disk: " in succeeded(planner_cli("show", tmp_path / "plan.json")).out
