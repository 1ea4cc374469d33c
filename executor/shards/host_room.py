"""The host memory that a run takes before its first step, and whether the machine has it free."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from executor.devices import free_host_bytes, ring_bytes
from executor.errors import RunError
from executor.workload import Task, staging_bytes
from plans.order import spans
from plans.part import Part
from plans.schema import Shard
from plans.schema import Task as PlanTask
from plans.timing import kinds_of
from profiles.units import show_bytes


def at_home(task: str) -> None:
    """All of the task is there."""


@dataclass(frozen=True)
class Shared:
    """The host store of a node that several processes have, its bytes in `slab`. The first of them
    `fills` it. bring: called with a task before its files are written, fetches what of it is in the
    stores of other nodes."""

    slab: Tensor
    fills: bool
    bring: Callable[[str], None] = at_home


def check_room(part: Part, tasks: Mapping[str, Task]) -> None:
    """RunError with what would be taken, line by line, when the machine has less memory free."""
    free, store = free_host_bytes(), store_bytes(part)
    staging = staging_of(part)
    models = {task.name: _model_bytes(task, tasks[task.name]) for task in part.tasks}
    largest = max(models.values(), default=0)  # one model at a time is built beside the store
    rings = ring_bytes(part.tasks, part.kind) * len(part.node_devices)
    needed = store + sum(staging.values()) + rings + largest
    if free is None or needed <= free:
        return
    rows: list[tuple[str, ...]] = [("task", "parameters", "optimizer state", "batches", "model")]
    for task in part.tasks:
        sizes = [
            sum(kept_sizes(shard).get(role, 0) for shard in task.shards)
            for role in ("param", "state")
        ]
        rows.append((task.name, *map(show_bytes, (*sizes, staging[task.name], models[task.name]))))
    table = "; ".join(map(" ".join, rows))
    raise RunError(
        f"the host store, the batches and the largest model as it is built need {needed} bytes, "
        f"the machine has {free} free: {table}; free memory, or build with a smaller --host-memory"
    )


def staging_of(part: Part) -> dict[str, int]:
    """Bytes in which the batches of tasks are prepared, by name."""
    tokens: dict[str, int] = {}  # the most of a step
    for program in part.plan.programs:
        most = max(sum(kind.tokens) for kind in kinds_of(program))
        tokens |= {name: max(most, tokens.get(name, 0)) for name in program.tasks}
    return {
        task.name: staging_bytes(task, tokens.get(task.name, 0)) * (task.name in part.held)
        for task in part.tasks
    }


def _model_bytes(plan: PlanTask, task: Task) -> int:
    """Bytes of a task's model before its parameters lie in the store: as it is built, in fp32, if
    it is not there already; and, where it trains in bf16, what it runs on to be cut."""
    parameters, low = (
        sum(s.param_bytes + s.base_bytes for s in plan.shards),
        plan.precision == "bf16",
    )
    built = 0 if isinstance(task.model, nn.Module) else parameters * (1 + low)
    runs = plan.cut is None or plan.cut.samples > 0
    return built + parameters * (low and runs)


def store_bytes(part: Part) -> int:
    """Bytes that the host store of a node takes: of what it uses; in node 0 also of the largest
    task that comes there only to be written to a file."""
    guests = [
        sum(
            sum(kept_sizes(shard).values())
            for number, shard in enumerate(task.shards)
            if part.node == 0 and number not in part.held.get(task.name, ())
        )
        for task in part.tasks
    ]
    own = spans(part.plan)[part.node]
    return sum(end - begin for begin, end in own) + max(guests, default=0)


def kept_sizes(shard: Shard) -> dict[str, int]:
    """Bytes that the store keeps of a shard, by role."""
    params = {} if shard.cast else {"param": shard.param_bytes}
    return params | {"state": shard.state_bytes, "base": shard.base_bytes}
