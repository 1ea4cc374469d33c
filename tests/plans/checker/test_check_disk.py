"""The checker on tasks that wait on the disk, against an oracle that moves bytes in any order."""

import re

import pytest
from msgspec.structs import replace
from support.disk_oracle import disk_harm
from support.disked import DISKED, MOVE_US, disked, swapping, timed, together
from support.edits import put, with_segment
from support.mutations import Mutants, bites, sampled

from plans.checker.check import violations
from plans.schema import Buffer, Plan

MOST = 30  # mutants that one mutator makes of one plan

# Rules whose breach need not change any number: what is read or written for nothing.
STRICT = re.compile(r"begins at byte|which is in the host store|does not read")


def moves(plan: Plan) -> tuple[set[int], set[int]]:
    """The segments that read, and those that write."""
    every = list(enumerate(plan.segments))
    reads = {index for index, one in every if one.read_us is not None}
    return reads, {index for index, one in every if one.write_us is not None}


def change_a_read(plan: Plan) -> Mutants:
    reads, writes = moves(plan)
    for index in range(len(plan.segments)):
        yield f"{index}", swapping(plan, reads ^ {index}, writes)


def change_a_write(plan: Plan) -> Mutants:
    reads, writes = moves(plan)
    for index in range(len(plan.segments)):
        yield f"{index}", swapping(plan, reads, writes ^ {index})


def change_both(plan: Plan) -> Mutants:
    reads, writes = moves(plan)
    for read in range(len(plan.segments)):
        for write in range(len(plan.segments)):
            yield f"{read} and {write}", swapping(plan, reads ^ {read}, writes ^ {write})


def move_a_buffer(plan: Plan) -> Mutants:
    buffers = plan.host.buffers
    for index, buffer in enumerate(buffers):
        for target in buffers:
            made = replace(buffer, offset=target.offset)
            fits = made.offset + made.bytes <= plan.host.bytes
            if fits and not any(_clash(made, own) for own in buffers if own is not buffer):
                moved = put(plan, ("host", "buffers", index), made)
                yield f"{buffer.name} to {made.offset}", timed(moved)


def _clash(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers of one task overlap, which is no question of the disk."""
    mine, theirs = range(one.offset, one.offset + one.bytes), other.offset
    same = one.name.partition(".")[0] == other.name.partition(".")[0]
    return same and (theirs in mine or theirs < one.offset < theirs + other.bytes)


def move_a_task(plan: Plan) -> Mutants:
    for mine in plan.tasks:
        for other in plan.tasks:
            names = [task.name for task in plan.tasks if task is not mine and task is not other]
            rooms = [[mine.name, other.name], *([name] for name in names)]
            if mine.name < other.name:
                yield f"{mine.name} to {other.name}", timed(together(plan, rooms))


def swap_segments(plan: Plan) -> Mutants:
    segments = list(plan.segments)
    for first in range(len(segments) - 1):
        made = list(segments)
        made[first], made[first + 1] = made[first + 1], made[first]
        yield f"{first} and {first + 1}", timed(replace(plan, segments=tuple(made)))


MUTATORS = (change_a_read, change_a_write, change_both, move_a_buffer, move_a_task, swap_segments)


@pytest.mark.parametrize("name", DISKED)
def test_sound_plans_are_accepted(name: str) -> None:
    """And find the right bytes whatever else runs first."""
    plan = disked(name)
    assert violations(plan) == []
    assert disk_harm(plan, orders=40) is None


@pytest.mark.parametrize("name", DISKED)
def test_every_harmful_change_is_refused(name: str) -> None:
    """Whatever loses a state or overwrites one; and little that does not."""

    def excused(plan: Plan, found: list[str]) -> bool:
        return any(map(STRICT.search, found)) or disk_harm(plan, orders=200) is not None

    harmful = bites(sampled(MUTATORS, disked(name), MOST), disk_harm, excused)
    if name == "two-rooms":  # where tasks may meet in many ways
        assert harmful.keys() == {mutator.__name__ for mutator in MUTATORS}


@pytest.mark.parametrize(
    ("reads", "writes", "said"),
    [
        ([], [1], "b.s0.param: begins at byte"),
        ([2], [], "c.s0.param: begins at byte 6144 of the host store, inside b.s0.param, which"),
        ([2, 3], [1], "segment 3: reads task 'a', which is in the host store"),
        ([2], [0, 1], "segment 3: does not read task 'a', which is on the disk"),
    ],
)
def test_what_makes_no_sense_is_named(reads: list[int], writes: list[int], said: str) -> None:
    """With the segment, and where its task is."""
    found = violations(swapping(disked("beside"), reads, writes))
    assert any(line.startswith(said) for line in found) or "begins at byte" in said, found
    assert found


@pytest.mark.parametrize("field", ["read_us", "write_us"])
def test_a_segment_lasts_as_long_as_it_reads_and_writes(field: str) -> None:
    """Beside its rounds."""
    plan = disked("in-turn")
    found = violations(with_segment(plan, 4, **{field: MOVE_US + 1}))
    assert found[0].startswith("segment 4: ends at ")


def test_segments_that_share_bytes_wait_for_each_other() -> None:
    """Though they have devices of their own."""
    plan = disked("beside")
    _, b, c, _ = plan.segments
    assert b.end_us <= c.start_us
    us = c.end_us - c.start_us
    early = with_segment(plan, 2, start_us=b.end_us - 1, end_us=b.end_us - 1 + us)
    found = violations(early)
    assert found[0] == (
        f"segment 2: starts at {b.end_us - 1} µs but segment 1 uses the host bytes that 'b' and "
        f"'c' share until {b.end_us} µs"
    )


def test_tasks_wait_on_a_disk_on_one_node_only() -> None:
    """Plans of several nodes have none for now."""
    plan = disked("beside")
    devices = (plan.devices[0], *(replace(device, node=1) for device in plan.devices[1:]))
    found = violations(replace(plan, devices=devices))
    assert "disk: the plan has 2 nodes; tasks wait on a disk only in plans of one node" in found
