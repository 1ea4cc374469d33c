"""What a plan runs when: of each task one answer, tasks in pairs where that is shorter, segments.

searched, worth ──▶ own answers ──▶ timetable ──▶ columns ──▶ pairs ──▶ timetable with pairs
                        ▲               │
                        └──── closer ◀──┘    as long as tasks that end last were only looked at
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.answers import Answer, Key, Own, closer
from planner.choice import Choice
from planner.columns import columns, settled, taken
from planner.configuration import configuration
from planner.gangs import Gang
from planner.pairs import Together
from planner.placement import Programs, timetable, work_of, works_of
from planner.problem import Effort, Policy, Problem
from planner.store import store
from planner.strategies import STRATEGIES, Known, Offer, alone
from planner.worth import counting, demand_of, own_gangs
from plans.schema import Program, Segment

_ENOUGH = 10_000  # within 1/n of the bound of its programs a timetable is short enough


@dataclass(frozen=True)
class Arranged:
    """own: what is known of every task. answers: of every task, as the plan trains it. programs:
    the tasks' own, by the kinds of devices. pairs: programs beside those, of tasks in common or of
    what such tasks have left to do. evaluates: by the name of a program that trains a task, the
    one that evaluates it."""

    own: Own
    answers: list[Answer]
    programs: Programs
    pairs: list[Together]
    segments: list[Segment]
    evaluates: Mapping[str, Program] = field(default_factory=dict)


def attentive(own: Own, effort: Effort, jobs: int) -> Own:
    """With all shapes searched in full whose better programs would end the plan sooner."""
    while own.rough and effort.left > 0 and (keys := counting(own, effort)):
        own = closer(own, keys, effort, jobs)
    return own


def arranged(own: Own, policy: Policy, effort: Effort, jobs: int, *, pairs: bool) -> Arranged:
    """The shortest timetable that is found; `pairs`: whether tasks may share a device."""
    made = _timetable(own, policy, effort)
    floor = configuration(demand_of(own.problem), _gangs(own), effort).us
    while own.rough and effort.left > 0 and not _enough(made, floor):
        keys = _last(own, made, floor)
        if not keys:
            break
        own = closer(own, keys, effort, jobs)
        made = _timetable(own, policy, effort)
        floor = configuration(demand_of(own.problem), _gangs(own), effort).us
    if (
        policy != "gantry"
        or not pairs
        or not all(isinstance(a.choice, Choice) for a in made.answers)
    ):
        return made
    return _paired(own, made, floor, effort, jobs)


def _gangs(own: Own) -> list[Gang]:
    return [gang for _, gang in own_gangs(own)]


def makespan(made: Arranged) -> int:
    return max(segment.end_us for segment in made.segments)


def _enough(made: Arranged, floor: int) -> bool:
    return (makespan(made) - floor) * _ENOUGH <= makespan(made)


def _last(own: Own, made: Arranged, floor: int) -> list[Key]:
    """The shapes only looked at of tasks on devices that end later than any would have to."""
    ends: dict[int, int] = {}
    for segment in made.segments:
        device = segment.devices[0]
        ends[device] = max(ends.get(device, 0), segment.end_us)
    of = {program.name: name for name, ways in made.programs.items() for program in ways if program}
    tasks = {of[s.program] for s in made.segments if ends[s.devices[0]] > floor}
    keys = {key for task in tasks for key in own.shapes.of[task]}
    return [key for key in own.rough if key in keys]


def _timetable(own: Own, policy: Policy, effort: Effort) -> Arranged:
    """Every task by itself."""
    problem, answers = own.problem, _answers(own, effort)
    programs = {
        answer.choice.costs.task.name: answer.programs(len(problem.kinds)) for answer in answers
    }
    evaluates = {name: one for answer in answers for name, one in answer.evaluates.items()}
    works = works_of(problem, programs, evaluates)
    segments = timetable(problem, works, programs, policy, effort)
    return Arranged(own, answers, programs, [], segments, evaluates)


def _answers(own: Own, effort: Effort) -> list[Answer]:
    """Of each task the answer for one of the kinds."""
    every = [own.answers(task) for task in own.problem.tasks]
    if all(len(answers) == 1 for answers in every):
        return [answer for (answer,) in every]
    choices = settled(columns(Known(own, effort), (alone,)), demand_of(own.problem), effort)
    keys = [own.shapes.of[task.name].index(choices[task.name]) for task in own.problem.tasks]
    return [
        next(answer for answer in answers if answer.kind == kind)
        for answers, kind in zip(every, keys, strict=True)
    ]


def _paired(own: Own, made: Arranged, floor: int, effort: Effort, jobs: int) -> Arranged:
    """With the pairs that the configuration program would run, where that is shorter. Where the
    timetable is above the bound, the time of devices counts that much more."""
    gap = (makespan(made) - floor) / makespan(made) if makespan(made) else 0.0
    demand, best = demand_of(own.problem), made
    found = columns(Known(own, effort, jobs), STRATEGIES, thrift=gap)
    if all(len(offer.gang.tasks) == 1 for offer in found.offers):
        return made
    choices = settled(found, demand, effort, gap)
    parts = taken(found, choices, demand, effort, gap)
    apart = {
        (task, choice): offer.use
        for offer in found.offers
        for task, choice in zip(offer.gang.tasks, offer.choices, strict=True)
        if offer.use and len(offer.gang.tasks) == 1
    }
    for rounds in (parts, _whole(parts, demand.steps)):
        if not rounds:
            continue
        left = dict(demand.steps)
        for offer, count in rounds:
            for task in offer.gang.tasks:
                left[task] -= count
        of = {task: choices[task] for offer, _ in rounds for task in offer.gang.tasks}
        uses = [(offer.use(count), count) for offer, count in rounds if offer.use]
        uses += [
            (apart[task, choice](left[task]), left[task])
            for task, choice in of.items()
            if left[task]
        ]
        tried = _with(own.problem, made, uses, effort)
        if _roomy(own.problem, tried.answers):
            best = min(best, tried, key=makespan)
    return best


def _roomy(problem: Problem, answers: Sequence[Answer]) -> bool:
    """Whether the host has room for all tasks: in a pair one may keep more there than by itself."""
    return sum(store(a.choice).bytes for a in answers) <= problem.host_bytes


def _whole(parts: Sequence[tuple[Offer, int]], steps: Mapping[str, int]) -> list[tuple[Offer, int]]:
    """Of gangs that run half of their rounds or more all, as far as there are steps."""
    left, out = dict(steps), []
    for offer, count in sorted(parts, key=lambda part: -part[1] / part[0].gang.rounds):
        most = min(offer.gang.rounds, *(left[task] for task in offer.gang.tasks))
        if 2 * count >= offer.gang.rounds and most > 0:
            out.append((offer, most))
            for task in offer.gang.tasks:
                left[task] -= most
    return out


def _with(
    problem: Problem, made: Arranged, uses: Sequence[tuple[Together, int]], effort: Effort
) -> Arranged:
    """The timetable with so many rounds of these programs in place of their tasks' own."""
    found, programs, works = {}, {}, []
    for use, rounds in uses:
        for name, one in use.found.items():
            found[name] = Answer(one.choice, one.program, one.candidates, one.complete, use.kind)
        ways: list[Program | None] = [None] * len(problem.kinds)
        ways[use.kind] = use.program
        programs[use.program.name] = ways
        works.append(work_of(problem, use.program.name, ways, rounds))
    answers = [found.get(answer.choice.costs.task.name, answer) for answer in made.answers]
    for task in problem.tasks:
        if task.name not in found:
            programs[task.name] = list(made.programs[task.name])
            works.append(work_of(problem, task.name, programs[task.name], task.steps))
    segments = timetable(problem, works, programs, "gantry", effort)
    return Arranged(made.own, answers, made.programs, [use for use, _ in uses], segments)
