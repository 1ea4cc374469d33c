"""Errors of a task for which the device or the host has too little, with what would do."""

from planner.errors import Infeasible
from planner.shards import Strategy
from profiles.schema import Task
from profiles.units import show_bytes


def short_device(
    strategy: Strategy, needs: int, offered: int, host_bytes: int | None
) -> Infeasible:
    """The device has too little even for this strategy, the least there is; host_bytes: of the host
    for it, where that is more than there is."""
    task = strategy.costs.task
    largest = max(strategy.shards, key=lambda s: s.param_bytes + s.backward_transient_bytes)
    name = task.layers[largest.first].name
    beside = "" if host_bytes is None else f", with --host-memory {host_bytes}"
    return Infeasible(
        f"{task.name}: needs {show_bytes(needs)} ({needs} bytes) on its device but the device "
        f"offers {show_bytes(offered)} ({offered} bytes); the largest shard begins at layer "
        f"{largest.first} ({name}) with {show_bytes(largest.param_bytes)} of parameters and "
        f"{show_bytes(largest.backward_transient_bytes)} of transients; smallest "
        f"--device-memory that would do{beside}: {needs}",
        needs,
    )


def short_host(task: Task, needs: int, offered: int) -> Infeasible:
    """The host has too little for a task that its device has room for."""
    return Infeasible(
        f"{task.name}: the host store needs {show_bytes(needs)} ({needs} bytes), with the device "
        f"memory that there is, but the host offers {show_bytes(offered)} ({offered} bytes); "
        f"smallest --host-memory that would do: {needs}",
        needs,
        "host",
    )
