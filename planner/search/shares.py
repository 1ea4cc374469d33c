"""Shares of the host memory for every task's search, such that all fit the host together.

Everybody's parameters and state are there all the time (or, with a disk, of those that train); what
waits there for a while only of the tasks that train at the same time, so that the rest is divided
by these. And the errors where the host, or a device, has too little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import Infeasible
from planner.inputs import Problem
from planner.shards import Strategy, TaskCosts
from profiles.schema import Task
from profiles.units import show_bytes


@dataclass(frozen=True)
class Need:
    """A task's bytes on the host: what is kept, cut finest; the least with which it has a plan."""

    kept: int
    least: int

    @classmethod
    def of(cls, task: Task) -> "Need":
        """As if it needed nothing but what is kept."""
        costs = TaskCosts(task, task.batches[0].microbatch)
        kept = sum(costs.shard(n, n + 1).kept_bytes for n in range(len(task.layers)))
        return cls(kept, kept)


def shares(
    problem: Problem, needs: Sequence[Need], parts: int | None = None, *, proven: bool = False
) -> list[int]:
    """Bytes for every task in turn. parts: into how many the rest is divided. proven: the needs are
    the least, so that Infeasible is the answer where they do not fit."""
    if len(needs) == 1:
        return [problem.host_bytes]
    working = min(problem.devices, len(needs))
    parts = parts or working
    kept = sum(min(need.kept, need.least) for need in needs)
    aside = sorted((max(0, need.least - need.kept) for need in needs), reverse=True)
    rest = problem.host_bytes - kept - sum(aside[:parts])
    if rest >= 0:
        return [need.least + rest // parts for need in needs]
    least = sorted((need.least for need in needs), reverse=True)
    if problem.disk is None:
        if proven:
            raise without_disk(problem, kept + sum(aside[:parts]), least[0], len(needs))
        return [need.least for need in needs]
    if proven and least[0] > problem.host_bytes:
        raise short_with_disk(problem, least[0])
    rest = problem.host_bytes - sum(least[:working])
    if rest < 0:  # then fewer train at a time
        return [problem.host_bytes for _ in needs]
    return [need.least + rest // working for need in needs]


def without_disk(problem: Problem, need: int, largest: int, tasks: int) -> Infeasible:
    """Too little host memory, and no disk."""
    disk = ""
    if largest < need and tasks > 1:
        disk = (
            f", or {largest} with a disk where idle tasks wait: profile with --disk DIR, and build "
            "without --disk-space 0"
        )
    return Infeasible(
        f"the host store of {tasks} task(s) needs {show_bytes(need)} ({need} bytes) but "
        f"the host offers {show_bytes(problem.host_bytes)} ({problem.host_bytes} bytes); "
        f"smallest --host-memory that would do: {need}{disk}",
        need,
        "host",
    )


def short_with_disk(problem: Problem, need: int) -> Infeasible:
    """Too little host memory for tasks that train at the same time, or for one."""
    return Infeasible(
        f"idle tasks can wait on the disk, but the host store needs {show_bytes(need)} ({need} "
        "bytes) for the largest that train together and the host offers "
        f"{show_bytes(problem.host_bytes)} ({problem.host_bytes} bytes); smallest --host-memory "
        f"that would do: {need}",
        need,
        "host",
    )


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
