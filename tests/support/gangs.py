"""Programs on several devices at once that stand in for pipelines, where only times count."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from planner.inputs.problem import DeviceGroup, Effort, Problem
from planner.search.task import Candidate
from planner.search.variants import Found, best_alone
from plans.schema import Program
from profiles.schema import Task
from tests.support import synthetic


def of_steps(devices: int, steps: Sequence[int]) -> Problem:
    """Tasks of so many steps on devices of one kind."""
    task = synthetic.task("t", layers=1)
    tasks = [structs.replace(task, name=f"t{n}", steps=count) for n, count in enumerate(steps)]
    return synthetic.problem(*tasks, usable_bytes=24 << 20, devices=devices)


def quicker(program: Program, devices: int, percent: int) -> Program:
    """The program on so many devices, where it takes as much less time, and so many per cent more;
    its ops are left as they were."""

    def less(us: int) -> int:
        return us * (100 + percent) // (100 * devices)

    return structs.replace(
        program,
        memory=program.memory * devices,
        enter_us=less(program.enter_us),
        period_us=less(program.period_us),
        round_us=less(program.round_us),
        leave_us=less(program.leave_us),
    )


def wider(way: Candidate, devices: int, percent: int) -> Candidate:
    """The strategy with such a program on the first kind of devices alone."""
    programs = (quicker(way.program, devices, percent), *[None] * (len(way.programs) - 1))
    return replace(way, programs=programs)


def pipelines(asked: tuple[DeviceGroup, Task, int], devices: int, effort: Effort) -> Found:
    """A search for programs on several devices, which are as much quicker, less a twentieth."""
    found = best_alone(asked, 0, effort)
    return wider(found, devices, 5) if isinstance(found, Candidate) else found
