"""Greedy timetables: from a list, to begin with; and of policies to compare with.

hydra    longest remaining time first, decided again at every minibatch (of Hydra's own programs)
lrtf     the same with Gantry's programs, decided again after every sixteenth of a task
lpt      whole tasks, the longest first
random   whole tasks in a seeded order
"""

import random
from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import chain

from planner.inputs import Policy
from planner.timetable.works import Devices, Line, Piece, Work

_TURNS = 16  # of a task under lrtf


def greedy(works: Sequence[Work], devices: Devices, policy: Policy, seed: int) -> list[Piece]:
    """The pieces of all works as the policy takes them, in order of their start.

    devices: the kind of each. ValueError for gantry, which is not greedy.
    """
    order = sorted(range(len(works)), key=lambda at: (-works[at].least_us, works[at].name))
    match policy:
        case "hydra":
            return longest_remaining(works, devices, {work.name: 1 for work in works})
        case "lrtf":
            turns = {work.name: -(-work.rounds // _TURNS) for work in works}
            return longest_remaining(works, devices, turns)
        case "lpt":
            return listed(works, order, devices)
        case "random":
            random.Random(seed).shuffle(order)
            return listed(works, order, devices)
    raise ValueError(f"policy {policy!r} is not greedy")


def longest_remaining(
    works: Sequence[Work], devices: Devices, turns: dict[str, int]
) -> list[Piece]:
    """Longest remaining time first (on the kind of device where it is shortest), on whichever
    device falls free, decided again after so many rounds of a work. A work that is taken again by
    its device goes on in the same piece."""
    left = {work.name: work.rounds for work in works}
    of = {work.name: work for work in works}
    pace = {work.name: min(run.period_us for run in work.runs if run) for work in works}
    free_at, ready_at = dict.fromkeys(range(len(devices)), 0), dict.fromkeys(left, 0)
    pieces: list[Piece] = []
    current: list[int | None] = [None] * len(devices)  # the piece each device is in
    latest: dict[str, tuple[int]] = {}  # the device that a work was on last
    while left:
        device = min(free_at, key=lambda d: (free_at[d], d))
        now, kind = free_at[device], devices[device]
        able = [
            name
            for name in left
            if of[name].runs[kind] and of[name].stays(latest.get(name, ()), (device,))
        ]
        if not able:
            del free_at[device]  # what is left cannot run there
            continue
        idle = [name for name in able if ready_at[name] <= now]
        if not idle:
            free_at[device] = min(ready_at[name] for name in able)
            current[device] = None
            continue
        name = max(idle, key=lambda n: (left[n] * pace[n], n))
        rounds, latest[name] = min(turns[name], left[name]), (device,)
        at = current[device]
        if at is not None and pieces[at].work == name:
            end = now + of[name].us(kind, rounds) - of[name].us(kind, 0)
            pieces[at] = pieces[at]._replace(rounds=pieces[at].rounds + rounds, end_us=end)
        else:
            end = now + of[name].us(kind, rounds)
            current[device] = len(pieces)
            pieces.append(Piece(name, (device,), rounds, now, end))
        ready_at[name] = free_at[device] = end
        left[name] -= rounds
        if not left[name]:
            del left[name]
    return pieces


Lines = dict[int, list[tuple[int, int]]]  # by kind, when each device falls free, ascending


def listed(works: Sequence[Work], order: Iterable[int], devices: Devices) -> list[Piece]:
    """Whole works: the device that falls free first takes the first in `order` that may begin and
    would not be done sooner on another kind; where there is none, the first goes where it is done
    soonest. A gang begins when as many devices as it takes are free."""
    waiting, ready = list(order), [work.want.start_us for work in works]
    free: Lines = {kind: [] for kind in devices}
    for device, kind in enumerate(devices):
        free[kind].append((0, device))
    pieces = []
    while waiting:
        (now, _), kind = min((line[0], kind) for kind, line in free.items())
        begin = max(now, min(ready[at] for at in waiting))
        able = (at for at in waiting if ready[at] <= begin)
        first = next(able)
        here = (
            at
            for at in chain([first], able)
            if _starts(works[at], begin, free)[:2] == (begin, kind)
        )
        at = next(here, first)
        start, on, line = _starts(works[at], begin, free)
        waiting.remove(at)
        mine = tuple(sorted(device for _, device in line))
        free[on] = [one for one in free[on] if one[1] not in mine]
        ready[at] = start + works[at].whole_us(on)
        for device in mine:
            insort(free[on], (ready[at], device))
        pieces.append(Piece(works[at].name, mine, works[at].rounds, start, ready[at]))
    return pieces


def _starts(work: Work, begin: int, free: Lines) -> tuple[int, int, Line]:
    """When, on which kind and on which devices the whole work starts, not before `begin`, if it is
    done soonest."""
    found = (
        (max(begin, team[run.devices - 1][0]), run.us(work.rounds), kind, team[: run.devices])
        for kind, line in free.items()
        if (run := work.runs[kind])
        for team in run.teams(line)
    )
    start, _, kind, line = min(found, key=lambda one: (one[0] + one[1], one[2]))
    return start, kind, line
