"""A task's state goes on from segment to segment, whatever program and device comes next.

One task on two devices, beside another: resident, then on both devices at once, then with all it
has coming and going, then resident again, elsewhere. Between segments its state is in the host
store and nowhere else.
"""

import re

import pytest
from msgspec.structs import replace
from support.edits import Edit, all_ops, with_program, with_segment, with_task
from support.handmade import assemble, program
from support.mutations import Mutant, bites, drop_op, mutants, other_buffer
from support.oracle import harm
from support.parts import Part, parallel_part, resident_part, streamed_part
from support.retime import retimed

from plans.checker.check import violations
from plans.schema import Plan, Segment

STEPS = 9


def coming_and_going() -> Part:
    """The task of `resident_part`, with parameters and state that come and go in each round."""
    part = resident_part("a", steps=STEPS)
    return part._replace(enter=[], round=[*part.enter, *part.round, *part.leave], leave=[])


def travelling() -> Plan:
    """A sound plan: the task in four segments of three programs, on either device and on both."""
    own = resident_part("a", steps=STEPS)
    other = streamed_part("b", shards=2)
    made = [
        program("stays", 1, [own]),
        program("both", 2, [parallel_part("a")]),
        program("moves", 1, [coming_and_going()]),
        program("other", 1, [other]),
    ]
    runs = [
        ("stays", (0,), 2),
        ("both", (1, 0), 3),
        ("moves", (1,), 2),
        ("stays", (0,), 2),
        ("other", (1,), 4),
    ]
    return assemble([own, other], made, runs)


def with_segments(plan: Plan, *segments: Segment) -> Plan:
    return replace(plan, segments=tuple(segments))


def naming(plan: Plan) -> list[str]:
    """What the checker says of a plan that does harm, as far as it names task a."""
    found = violations(plan)
    return [line for line in found if re.search(r"(^|[ '(])a(\.|:|'|\)|$)", line)]


def test_different_residency_is_no_harm() -> None:
    """What stays in one program may come and go in the next, on any device."""
    plan = travelling()
    assert violations(plan) == []
    assert harm(plan, orders=5) is None


def test_no_load_and_no_spill_may_be_lost_or_be_of_something_else() -> None:
    """Each of what a segment's beginning loads and its end writes back is needed, and in its place:
    not from or to that of the other role, nor of the other task."""
    plan = travelling()
    ends = {op.id for _, phase, _, op in all_ops(plan) if phase != "round" and op.id[:2] == "a."}
    sites = (site for mutator in (drop_op, other_buffer) for site in mutator(plan))
    some = [Mutant(what, retimed(make())) for what, make in sites if what.split()[0] in ends]
    assert bites(some, harm).total() > 3 * len(ends)


def test_nothing_is_still_there_from_the_segment_before() -> None:
    """A program that stays where it was, and so loads nothing, begins with nothing."""
    plan = travelling()
    stays = plan.programs[0]
    again = replace(stays, name="again", enter=())
    first, *rest = plan.segments
    segments = first, replace(first, program="again"), *rest[1:]
    mutant = retimed(replace(plan, programs=(*plan.programs, again), segments=segments))
    assert harm(mutant)
    lines = [line for line in naming(mutant) if "program 'again'" in line]
    assert any("a.s0.B0" in line and "nothing was written to it" in line for line in lines)


def _halves(plan: Plan) -> Plan:
    """A segment is cut in two that are predicted at one time, and all steps are trained."""
    first, *rest = plan.segments
    half = replace(first, rounds=1, end_us=first.end_us - plan.programs[0].period_us)
    return with_segments(plan, half, half, *rest)


CHANGES: dict[str, Edit] = {
    "the second begins on its devices while the first still has the task": (
        lambda p: with_segment(
            p, 1, start_us=0, end_us=p.segments[1].end_us - p.segments[1].start_us
        )
    ),
    "the later of two comes first in the list": (
        lambda p: with_segments(p, *(p.segments[n] for n in (0, 2, 1, 3, 4)))
    ),
    "twice in the list": lambda p: with_segments(p, p.segments[0], *p.segments),
    "twice with fewer rounds": _halves,
    "missing": lambda p: retimed(with_segments(p, *p.segments[1:])),
    "missing, and another has one round more": (
        lambda p: retimed(with_segments(p, replace(p.segments[1], rounds=4), *p.segments[2:]))
    ),
    "one step more than segments train": lambda p: with_task(p, steps=STEPS + 1),
    "a program of the other task": lambda p: retimed(with_segment(p, 0, program="other")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_segments_of_a_task_follow_each_other_and_train_all_steps(change: str) -> None:
    """None at the same time as another, none twice, none missing; the refusal names the task."""
    assert naming(CHANGES[change](travelling()))


def test_what_waits_in_the_store_is_nobody_elses() -> None:
    """Scratch of a program that runs at the same time, or between, must not lie over it."""
    plan = travelling()
    at = {buffer.name: buffer for buffer in plan.host.buffers}
    for kept in ("a.s0.param", "a.s0.state"):
        buffers = tuple(
            replace(b, offset=at[kept].offset) if b.name == "b.s0.grad" else b
            for b in plan.host.buffers
        )
        mutant = replace(plan, host=replace(plan.host, buffers=buffers))
        assert harm(mutant)
        assert any(kept in line for line in naming(mutant))


def test_a_program_may_not_train_a_task_that_it_does_not_name() -> None:
    plan = travelling()
    moves = plan.programs[2]
    mutant = with_program(plan, replace(moves, tasks=("b",)))
    assert naming(mutant)


def test_of_all_mutants_the_harmful_are_refused() -> None:
    """Of order, ops, buffers, segments and tasks, as for plans of one segment."""
    assert bites(mutants(travelling(), seed=3, limit=76), harm, lambda *_: True)
