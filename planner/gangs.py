"""Gangs: the columns of the configuration program, one for each program that a plan may run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plans.metrics import duration_us
from plans.schema import Program


@dataclass(frozen=True)
class Gang:
    """Tasks that train together on so many devices of one kind, a step of each in every round.

    At best `rounds` rounds take `us` µs: n rounds in any number of segments, n <= rounds, take at
    least n * us / rounds.
    """

    program: str
    tasks: tuple[str, ...]
    kind: str
    devices: int
    rounds: int
    us: int


def gang(program: Program, kind: str, steps: Mapping[str, int], tasks: Sequence[str] = ()) -> Gang:
    """The gang that runs `program`, until the first of its tasks has all of its `steps`; or of
    others of the same shapes in place of its tasks.

    Entering and leaving is spread over these rounds: a schedule that runs fewer of them pays it
    as well.
    """
    name = "+".join(tasks) or program.name
    tasks = tuple(tasks) or program.tasks
    rounds = min(steps[task] for task in tasks)
    least = min(duration_us(program, rounds), rounds * duration_us(program, 1))
    return Gang(name, tasks, kind, program.devices, rounds, least)
