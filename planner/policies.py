"""Greedy orders to compare with: which task a device takes when it falls free.

hydra    longest remaining time first, decided again at every minibatch (of Hydra's own programs)
lrtf     the same with Gantry's programs, decided again after every sixteenth of a task
lpt      whole tasks, the longest first
random   whole tasks in a seeded order
"""

import random
from collections.abc import Sequence
from dataclasses import replace

from planner.problem import Policy
from planner.queues import Piece, Work, listed

_TURNS = 16  # of a task under lrtf


def greedy(works: Sequence[Work], devices: int, policy: Policy, seed: int) -> list[Piece]:
    """The pieces of all works as the policy takes them, in order of their start.

    ValueError for gantry, which is not greedy.
    """
    order = sorted(range(len(works)), key=lambda at: (-works[at].whole_us, works[at].task))
    match policy:
        case "hydra":
            return longest_remaining(works, devices, {work.task: 1 for work in works})
        case "lrtf":
            turns = {work.task: -(-work.rounds // _TURNS) for work in works}
            return longest_remaining(works, devices, turns)
        case "lpt":
            return listed(works, order, devices)
        case "random":
            random.Random(seed).shuffle(order)
            return listed(works, order, devices)
    raise ValueError(f"policy {policy!r} is not greedy")


def longest_remaining(works: Sequence[Work], devices: int, turns: dict[str, int]) -> list[Piece]:
    """Longest remaining time first, on whichever device falls free, decided again after so many
    rounds of a task. A task that is taken again by its device goes on in the same piece."""
    left = {work.task: work.rounds for work in works}
    of = {work.task: work for work in works}
    free_at, ready_at = [0] * devices, dict.fromkeys(left, 0)
    pieces: list[Piece] = []
    current: list[int | None] = [None] * devices  # the piece each device is in
    while left:
        device = min(range(devices), key=lambda d: (free_at[d], d))
        now = free_at[device]
        idle = [task for task in left if ready_at[task] <= now]
        if not idle:
            free_at[device] = min(ready_at[task] for task in left)
            current[device] = None
            continue
        task = max(idle, key=lambda t: (left[t] * of[t].period_us, t))
        rounds = min(turns[task], left[task])
        at = current[device]
        if at is not None and pieces[at].task == task:
            end = now + rounds * of[task].period_us
            pieces[at] = replace(pieces[at], rounds=pieces[at].rounds + rounds, end_us=end)
        else:
            end = now + of[task].us(rounds)
            current[device] = len(pieces)
            pieces.append(Piece(task, device, rounds, now, end))
        ready_at[task] = free_at[device] = end
        left[task] -= rounds
        if not left[task]:
            del left[task]
    return pieces
