"""Plans that torch.distributed.pipelining cannot run, refused by the name of shard or op.

Its schedules say when a rank runs a microbatch forward or backward, and what it sends. A stage is
on one rank and stays there with its parameters; what happens between the steps is its user's.
"""

from collections.abc import Iterator

from planner.views import ranges, shards_on, stages
from plans.schema import Plan, Program, Shard, Task
from profiles.errors import FormatError

_MEMORY = "build with more --device-memory or another --order"


def expressible(plan: Plan) -> tuple[Task, Program]:
    """The task of a plan and its program; FormatError that names the first thing that a schedule of
    torch.distributed.pipelining has no word for."""
    for why in _reasons(plan):
        raise FormatError(f"torch.distributed.pipelining cannot run this plan: {why}")
    return plan.tasks[0], plan.programs[0]


def recomputes(task: Task) -> list[bool]:
    """For every shard True if its backward begins with its forward; the last shard's is one with
    its forward, which is computed once."""
    *others, _ = task.shards
    return [*(shard.activations == "recompute" for shard in others), False]


def _reasons(plan: Plan) -> Iterator[str]:
    """All reasons against it, each by name."""
    if len(plan.tasks) > 1:
        names = ", ".join(task.name for task in plan.tasks)
        yield f"it trains {len(plan.tasks)} tasks ({names}), a schedule is of one"
    (task, *_), (program, *_) = plan.tasks, plan.programs
    if task.evaluation:
        yield f"{task.name} evaluates between its steps; leave evaluate out of the task"
    if len(plan.segments) > 1:
        yield f"{task.name} runs in {len(plan.segments)} segments, a schedule is one"
    for group in task.ties:
        if len(places := sorted({home or 0 for home in task.homes(group)})) > 1:
            yield f"tied layers {list(group)} of {task.name} lie in {ranges(places)}"
    for number, shard in enumerate(task.shards):
        yield from (f"{task.name}.s{number} {why}" for why in _of_shard(shard))
    yield from _of_program(task, program)


def _of_shard(shard: Shard) -> Iterator[str]:
    if shard.param_bytes and not shard.resident:
        yield f"loads its parameters in every round; {_MEMORY}"
    if shard.grad_bytes and shard.update != "device":
        where = "on the host" if shard.update == "host" else "with state that comes and goes"
        yield f"is updated {where}; {_MEMORY}"
    if shard.activations == "offload":
        yield f"keeps activations on the host from forward to backward; {_MEMORY}"


def _of_program(task: Task, program: Program) -> Iterator[str]:
    if program.kinds:
        kinds = 1 + len(program.kinds)
        yield f"{task.name} has {kinds} kinds of rounds, a schedule has one"
    found = stages(program, task.name)
    for stage in found:
        if len(stage.devices) > 1:
            devices = ", ".join(map(str, stage.devices))
            yield f"{task.name}.s{stage.shards[0]} has replicas on devices {devices}"
    if idle := sorted(set(range(program.devices)) - shards_on(found).keys()):
        yield f"device {idle[0]} has no shard of {task.name}"
    names, again = [op.name for op in program.round], recomputes(task)
    for name in names:
        if name.kind in "PS" and name.item != "batch":
            yield f"{name} copies between host and device in every round; {_MEMORY}"
        if name.kind == "I" and again[name.number]:
            # A checkpoint is computed again in I, and for every few parameters of W.
            yield f"{name} recomputes what its W uses as well; build with another --order"
    last = len(task.shards) - 1
    ends = [name.index for name in names if name.kind in "BI" and name.number == last]
    if ends != sorted(ends):  # the schedule takes the losses in the order of the forwards
        yield f"{task.name}.s{last} does not take its microbatches in ascending order"
