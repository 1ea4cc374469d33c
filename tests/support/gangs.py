"""Programs on several devices at once that stand in for pipelines, where only times count or where
one device does all the work."""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from planner.errors import Infeasible
from planner.inputs.problem import Effort, Kind, Problem
from planner.search.task import Candidate
from planner.search.variants import Found, best
from plans.schema import Memory, Program
from profiles.schema import Layer, Struct, Task, Time
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


def pipelines(
    asked: tuple[Kind, Task, int],
    devices: int,
    effort: Effort,
    *,
    order: str = "auto",
    alike: object = None,
) -> Found:
    """The search for programs on several devices, as the planner has it: the first computes as much
    quicker, less a twentieth, and the others look on. Infeasible with few microbatches."""
    kind, task, host_bytes = asked
    if task.batch < 2 * devices * min(batch.microbatch for batch in task.batches):
        return Infeasible(f"{task.name}: too few microbatches for {devices} devices")
    layers = tuple(_hurried(layer, devices) for layer in task.layers)
    found = best((kind, structs.replace(task, layers=layers), host_bytes), effort)
    if not isinstance(found, Candidate):
        return found
    idle = (Memory(0, 0),) * (devices - 1)
    program = structs.replace(found.program, memory=found.program.memory + idle)
    costs = replace(found.strategy.costs, task=task)
    return replace(found, strategy=replace(found.strategy, costs=costs), programs=(program,))


def _hurried(layer: Layer, devices: int) -> Layer:
    def less(part: Struct) -> dict[str, Time]:
        times = ((name, getattr(part, name)) for name in part.__struct_fields__)
        return {
            name: structs.replace(time, median_us=time.median_us * 21 // (20 * devices))
            for name, time in times
            if isinstance(time, Time)
        }

    costs = tuple(structs.replace(cost, **less(cost)) for cost in layer.costs)
    return structs.replace(layer, costs=costs, **less(layer))
