"""A plan of two mixes of pipelines for one task with lengths, which its segments have in turn."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs
from support import piped, synthetic
from support.texted import Packed, sized, tabled, text_task

from planner.builder import assemble, certified
from planner.inputs import Effort, Problem
from planner.lowering import Round
from planner.search import Candidate
from planner.sequences.made import in_common
from planner.sequences.mix import Lane, Passes, side_by_side
from planner.shards import Mode, TaskCosts
from plans.prediction import Bound
from plans.schema import Plan, Segment
from plans.timing import duration_us

LAYERS, CUTS = 4, (0, 1, 2, 3, 4)
WAYS = (((2, 2),), ((1, 2), (1, 1)))  # of each pipeline its stages and microbatches
TOKENS = ((512, 512), (512, 256, 512))  # the most of each microbatch
MODES = (
    Mode("streamed", "host"),
    Mode("resident", "device", "saved"),
    Mode("kept", "device-streamed", spilled=True),
    Mode("resident", "device"),
)


def switched(turns: Sequence[tuple[int, int]]) -> Packed:
    """Two stages, and one beside one: (way, steps) in turn."""
    steps = sum(rounds for _, rounds in turns)
    task = text_task(LAYERS, steps)
    plan = sized(_plan(turns), task)
    programs = zip(plan.programs, TOKENS, strict=True)
    plan = structs.replace(
        plan, programs=tuple(structs.replace(one, tokens=tokens) for one, tokens in programs)
    )
    return tabled(plan, task, [TOKENS[way] for way, rounds in turns for _ in range(rounds)])


def _plan(turns: Sequence[tuple[int, int]]) -> Plan:
    """The plan for a made-up task."""
    task = synthetic.task("a", layers=LAYERS, batch=8)
    made = [
        Round(replace(strategy, modes=MODES), piped.LINKS)
        for way in WAYS
        for lanes in ([Lane(d, n, TaskCosts(task, 1, count=n)) for d, n in way],)
        if (strategy := side_by_side(lanes, piped.LINKS, CUTS, Passes("1f1b"), 2, CUTS))
    ]
    programs = [
        structs.replace(one.program(), name=name)
        for one, name in zip(made, ("a.2", "a.1+1"), strict=True)
    ]
    segments, end = list[Segment](), 0
    for way, rounds in turns:
        start, end = end, end + duration_us(programs[way], rounds)
        segments.append(Segment(programs[way].name, (0, 1), rounds, start, end))
    profile = synthetic.profile(task, usable_bytes=1 << 30)
    problem = Problem.of(profile, devices=2, device_bytes=None, host_bytes=None)
    candidate = Candidate(in_common([one.strategy for one in made]), tuple(programs))
    plan = assemble(problem, [candidate], segments, "gantry", Effort(0, 0))
    return certified(problem, plan, [Bound("none", 0)])
