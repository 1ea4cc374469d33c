"""The host memory that a run takes before its first step, and whether the machine has it free."""

from collections.abc import Mapping

from torch import nn

from executor.devices import free_host_bytes, ring_bytes
from executor.errors import RunError
from executor.workload import Task, staging_bytes
from plans.nodes import held, spans
from plans.schema import Plan, Shard
from plans.schema import Task as PlanTask
from profiles.units import show_bytes


def check_room(plan: Plan, tasks: Mapping[str, Task], node: int) -> None:
    """RunError with what would be taken, line by line, when a node has less memory free."""
    free, store = free_host_bytes(), store_bytes(plan, node)
    here = {name for name, _ in held(plan, node)}
    staging = {task.name: staging_bytes(task) * (task.name in here) for task in plan.tasks}
    models = {task.name: _model_bytes(task, tasks[task.name]) for task in plan.tasks}
    largest = max(models.values())  # one model at a time is built beside the store
    needed = store + sum(staging.values()) + ring_bytes(plan) + largest
    if free is None or needed <= free:
        return
    rows: list[tuple[str, ...]] = [("task", "parameters", "optimizer state", "batches", "model")]
    for task in plan.tasks:
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


def _model_bytes(plan: PlanTask, task: Task) -> int:
    """Bytes of a task's model before its parameters lie in the store: as it is built, in fp32, if
    it is not there already; and, where it trains in bf16, what it runs on to be cut."""
    parameters, low = sum(shard.param_bytes for shard in plan.shards), plan.precision == "bf16"
    built = 0 if isinstance(task.model, nn.Module) else parameters * (1 + low)
    runs = plan.cut is None or plan.cut.samples > 0
    return built + parameters * (low and runs)


def store_bytes(plan: Plan, node: int) -> int:
    """Bytes that the host store of a node takes: of what it uses; in node 0 also of the largest
    task that comes there only to be written to a file."""
    used = held(plan, node)
    guests = [
        sum(
            sum(kept_sizes(shard).values())
            for number, shard in enumerate(task.shards)
            if node == 0 and (task.name, number) not in used
        )
        for task in plan.tasks
    ]
    return sum(end - begin for begin, end in spans(plan, node)) + max(guests)


def kept_sizes(shard: Shard) -> dict[str, int]:
    """Bytes that the store keeps of a shard, by role."""
    params = {} if shard.cast else {"param": shard.param_bytes}
    return params | {"state": shard.state_bytes}
