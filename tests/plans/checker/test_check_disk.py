"""The checker on tasks that wait on the disk, against an oracle that moves bytes in any order."""

import random
import re
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace
from support.disk_oracle import disk_harm
from support.disked import DISKED, Moves, counted, disked, timed, together, with_moves

import plans
from plans.checker.check import violations
from plans.order import kept_bytes
from plans.schema import Buffer, Move, Plan

MOST = 60  # mutants that one mutator makes of one plan

Mutants = Iterator[tuple[str, Plan]]

# Rules whose breach need not change any number: what is read back or written away for nothing,
# how moves are counted, a file that the moves do not need.
STRICT = re.compile(
    r"moves of a task are counted|none is left|is for segment|which the task is not in|"
    r"begins at byte|has no moves|already"
)


def requeued(plan: Plan, moves: list[Move]) -> Plan:
    """The plan with another queue: moves counted anew, bytes of the files and times honest."""
    return with_moves(plan, counted(moves))


def queue(plan: Plan) -> list[Move]:
    assert plan.disk
    return list(plan.disk.moves)


def drop_a_move(plan: Plan) -> Mutants:
    moves = queue(plan)
    for place, move in enumerate(moves):
        yield move.id, requeued(plan, moves[:place] + moves[place + 1 :])


def drop_two_moves(plan: Plan) -> Mutants:
    moves = queue(plan)
    for place, move in enumerate(moves):
        for other in range(place):
            left = [m for at, m in enumerate(moves) if at not in (place, other)]
            yield f"{moves[other].id} and {move.id}", requeued(plan, left)


def swap_moves(plan: Plan) -> Mutants:
    moves = queue(plan)
    for first in range(len(moves)):
        for second in range(first + 1, min(first + 4, len(moves))):
            made = list(moves)
            made[first], made[second] = made[second], made[first]
            yield f"{moves[first].id} and {moves[second].id}", requeued(plan, made)


def shift_a_move(plan: Plan) -> Mutants:
    moves = queue(plan)
    for source in range(len(moves)):
        for target in range(max(0, source - 3), min(len(moves), source + 4)):
            made = list(moves)
            made.insert(target, made.pop(source))
            yield f"{moves[source].id} to {target}", requeued(plan, made)


def other_segment(plan: Plan) -> Mutants:
    moves = queue(plan)
    for place, move in enumerate(moves):
        for segment in range(len(plan.segments) + 1):
            made = [*moves[:place], replace(move, segment=segment), *moves[place + 1 :]]
            yield f"{move.id} for {segment}", requeued(plan, made)


def turn_a_move(plan: Plan) -> Mutants:
    moves = queue(plan)
    for place, move in enumerate(moves):
        turned = move.id.translate(str.maketrans("PS", "SP"))
        made = [*moves[:place], replace(move, id=turned), *moves[place + 1 :]]
        yield move.id, requeued(plan, made)


def add_a_move(plan: Plan) -> Mutants:
    moves = queue(plan)
    for place in range(len(moves) + 1):
        for task in plan.tasks:
            for kind in "PS":
                for segment in range(0, len(plan.segments), 2):
                    extra = Move(f"{task.name}.disk.{kind}0", segment, 0, 0)
                    made = [*moves[:place], extra, *moves[place:]]
                    yield f"{extra.id} for {segment} at {place}", requeued(plan, made)


def move_a_buffer(plan: Plan) -> Mutants:
    buffers = plan.host.buffers
    for index, buffer in enumerate(buffers):
        for target in buffers:
            made = replace(buffer, offset=target.offset)
            fits = made.offset + made.bytes <= plan.host.bytes
            if fits and not any(_clash(made, own) for own in buffers if own is not buffer):
                moved = (*buffers[:index], made, *buffers[index + 1 :])
                host = replace(plan.host, buffers=moved)
                yield f"{buffer.name} to {made.offset}", replace(plan, host=host)


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
                yield f"{mine.name} to {other.name}", together(plan, rooms)


def swap_segments(plan: Plan) -> Mutants:
    segments = list(plan.segments)
    for first in range(len(segments) - 1):
        made = list(segments)
        made[first], made[first + 1] = made[first + 1], made[first]
        yield f"{first} and {first + 1}", timed(replace(plan, segments=tuple(made)))


MUTATORS = (
    drop_a_move,
    drop_two_moves,
    swap_moves,
    shift_a_move,
    other_segment,
    turn_a_move,
    add_a_move,
    move_a_buffer,
    move_a_task,
    swap_segments,
)


@pytest.mark.parametrize("name", DISKED)
def test_sound_moves_are_accepted(name: str) -> None:
    """And move the right bytes whatever else runs first."""
    plan = disked(name)
    assert violations(plan) == []
    assert disk_harm(plan, orders=40) is None


@pytest.mark.parametrize("name", DISKED)
def test_every_harmful_change_of_moves_is_refused(name: str) -> None:
    """Whatever loses a state, overwrites one or never ends; and little that does not."""
    harmful: Counter[str] = Counter()
    missed, strict, tried = [], [], 0
    for mutator in MUTATORS:
        mutants = list(mutator(disked(name)))
        for what, mutant in random.Random(1).sample(mutants, min(MOST, len(mutants))):
            found, why = violations(mutant), disk_harm(mutant)
            tried += 1
            if why:
                harmful[mutator.__name__] += 1
                missed += [] if found else [f"{mutator.__name__}: {what}: {why}"]
            elif (
                found
                and not any(STRICT.search(line) for line in found)
                and not disk_harm(mutant, orders=200)
            ):
                strict.append(f"{mutator.__name__}: {what}: {found[0]}")
    print(f"{name}: {harmful.total() - len(missed)}/{harmful.total()} of {tried}")
    assert not missed
    assert not strict
    if name == "two-rooms":  # where tasks may meet in many ways
        assert harmful.keys() == {mutator.__name__ for mutator in MUTATORS}


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        ([("b.disk.S0", 1), ("c.disk.P1", 2)], "c.disk.P1: expected c.disk.P0, moves of a task"),
        ([("b.disk.S0", 0), ("c.disk.P0", 2)], "b.disk.S0: comes after segment 0, which the task"),
        ([("b.disk.S0", 9), ("c.disk.P0", 2)], "b.disk.S0: comes after segment 9, which the task"),
        (
            [("b.disk.S0", 1), ("c.disk.P0", 1)],
            "c.disk.P0: is for segment 1 of the task, expected segment 2, its next one",
        ),
        (
            [("b.disk.S0", 1), ("b.disk.P0", 2), ("c.disk.P0", 2)],
            "b.disk.P0: is for segment 2 of the task, expected none is left",
        ),
        (
            [("b.disk.S0", 1), ("c.disk.P0", 2), ("c.disk.P1", 2)],
            "c.disk.P1: the task is in the host store already",
        ),
        ([("b.disk.S0", 1), ("b.disk.S1", 1)], "b.disk.S1: the task is on the disk already"),
        ([("a.disk.S0", 0)], "a.disk.S0: leaves the task on the disk, but segment 3 trains it"),
        ([("z.disk.S0", 0)], "z.disk.S0: moves task 'z', which the plan does not have"),
        ([("b.disk.S0\n", 1)], "'b.disk.S0\\n' is not the name of a move"),
        (
            [("c.disk.P0", 2), ("b.disk.S0", 1)],
            "c.s0.param: begins at byte 6144 of the host store, inside b.s0.param, which ends at "
            "6656; both are kept between segments",
        ),
    ],
)
def test_a_move_that_makes_no_sense_is_named(moves: Moves, said: str) -> None:
    """With what it says, and what was expected."""
    plan = disked("beside")
    assert plan.disk
    queue = tuple(Move(name, segment, 0, 0) for name, segment in moves)
    found = violations(replace(plan, disk=replace(plan.disk, moves=queue)))
    assert any(line.startswith(said) for line in found), found


def test_rings_of_segments_and_moves_are_shown() -> None:
    """A spill after a segment that waits, by its device, for the fetch behind it in the queue."""
    plan = disked("in-turn")
    a, b_in, b_out, c_in, c_out, *rest = queue(plan)
    found = violations(requeued(plan, [a, c_in, c_out, b_in, b_out, *rest]))
    (line,) = (line for line in found if "a deadlock" in line)
    ring = line.rpartition(": ")[2].split(" -> ")
    assert ring[0] == ring[-1]
    assert set(ring) == {"b.disk.P0", "segment 1", "segment 2", "c.disk.S0"}


def test_the_disk_must_be_large_enough() -> None:
    """Its bytes are those of the files of all tasks that are ever there."""
    plan = disked("beside")
    assert plan.disk
    size = sum(kept_bytes(task) for task in plan.tasks if task.name != "a")
    assert plan.disk.bytes == size
    small = replace(plan.disk, budget_bytes=size - 1)
    found = violations(replace(plan, disk=small))
    assert found == [f"disk: {size} bytes exceed the budget of {size - 1}"]
    wrong = replace(plan.disk, bytes=size - 1)
    found = violations(replace(plan, disk=wrong))
    assert found == [f"disk: says {size - 1} bytes, the files of the tasks moved take {size}"]
    found = violations(replace(plan, disk=replace(plan.disk, bytes=0, moves=())))
    assert found == ["disk: has no moves; a plan without any has no disk"]


@pytest.mark.parametrize(
    ("place", "field", "said"),
    [
        (0, "start_us", "b.disk.S0: starts at {} µs but segment 1 ends at {}"),
        (1, "start_us", "c.disk.P0: starts at {} µs but b.disk.S0 ends at {} µs"),
        (1, "end_us", "segment 2: starts at {} µs but waits for c.disk.P0, which ends at {} µs"),
    ],
)
def test_times_of_moves_are_possible(place: int, field: str, said: str) -> None:
    """None begins before what it waits for has ended, and no segment before its fetch."""
    plan = disked("beside")
    assert plan.disk
    by = 1 if field == "end_us" else -1
    moves = queue(plan)
    moves[place] = replace(moves[place], **{field: getattr(moves[place], field) + by})
    found = violations(replace(plan, disk=replace(plan.disk, moves=tuple(moves))))
    assert len(found) == 1
    assert re.sub(r"\d+ µs|at \d+$", "{}", found[0]).startswith(re.sub(r"\{\} µs", "{}", said))


def test_a_run_ends_with_its_last_move() -> None:
    """Of a task that leaves the store when all segments are over."""
    plan = disked("beside")
    late = with_moves(plan, [("b.disk.S0", 1), ("c.disk.P0", 2), ("a.disk.S0", 3)])
    assert violations(late) == []
    assert late.disk
    end = late.disk.moves[-1].end_us
    assert late.prediction.makespan_us == end > max(s.end_us for s in late.segments)
    told = replace(late.prediction, makespan_us=end - 1)
    found = violations(replace(late, prediction=told))
    assert found[0] == f"prediction: makespan is {end - 1} µs but the last move ends at {end}"


def test_a_plan_with_moves_is_read_as_it_was_written() -> None:
    """The queue is part of the format."""
    plan = disked("two-rooms")
    assert plans.loads(msgspec.json.encode(plan)) == plan
