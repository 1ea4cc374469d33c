"""Shares of the host memory for every task's search, such that all fit the host together.

Everybody's parameters and state are there all the time (or, with a disk, of those that train); what
waits there for a while only of the tasks that train at the same time, so that the rest is divided
by these. And the errors where the host, or a device, has too little.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import Infeasible
from planner.inputs import DeviceGroup, Problem
from planner.shards import Strategy, TaskCosts, stays_whole
from profiles.schema import Task
from profiles.units import enough_bytes, exact_bytes, show_bytes


@dataclass(frozen=True)
class Need:
    """The bytes on the host of each of so many tasks that cost the same: what is kept, cut finest;
    the least with which it has a plan."""

    tasks: int
    kept: int
    least: int

    @classmethod
    def of(cls, task: Task, tasks: int) -> "Need":
        """As if it needed nothing but what is kept."""
        costs = TaskCosts(task, task.batches[0].microbatch)
        kept = sum(costs.shard(n, n + 1).kept_bytes for n in range(len(task.layers)))
        return cls(tasks, kept, kept)


def shares(
    problem: Problem, needs: Sequence[Need], parts: int | None, *, proven: bool
) -> list[int]:
    """Bytes for a task of each need. parts: into how many the rest is divided, by default one for
    each task that trains at the same time. proven: the needs are the least, so that Infeasible is
    the answer where they do not fit."""
    every = [need for need in needs for _ in range(need.tasks)]
    if len(every) == 1:
        return [problem.host_bytes]
    if problem.nodes > 1:  # as if each had its part of the tasks; the plan says which it has
        wide = replace(problem, host_bytes=problem.host_bytes * problem.nodes).alike(node=None)
        divided = shares(wide, needs, parts, proven=proven)
        return [min(each, problem.host_bytes) for each in divided]
    working = min(problem.devices, len(every))
    parts = parts or working
    aside = sorted((max(0, need.least - need.kept) for need in every), reverse=True)
    total = sum(min(need.kept, need.least) for need in every) + sum(aside[:parts])
    least = sorted((need.least for need in every), reverse=True)
    more = max(0, problem.host_bytes - total) // parts
    if total > problem.host_bytes:
        if proven and problem.disk is None:
            raise without_disk(problem, total, least[0], len(every))
        if proven and least[0] > problem.host_bytes:
            raise short_with_disk(problem, least[0])
        if problem.disk:
            more = (problem.host_bytes - sum(least[:working])) // working
        if more < 0:  # then fewer train at a time
            return [problem.host_bytes for _ in needs]
    return [need.least + more for need in needs]


def without_disk(problem: Problem, need: int, largest: int, tasks: int) -> Infeasible:
    """Too little host memory, and no disk."""
    disk = ""
    if largest < need and tasks > 1:
        disk = (
            f", or {enough_bytes(largest)} with a disk where idle tasks wait: profile with --disk "
            "DIR, and build without --disk-space 0"
        )
    return _short_host(f"the host store of {tasks} task(s)", need, problem.host_bytes, disk)


def short_with_disk(problem: Problem, need: int) -> Infeasible:
    """Too little host memory for tasks that train at the same time, or for one."""
    who = "idle tasks can wait on the disk, but the host store of the largest that train together"
    return _short_host(who, need, problem.host_bytes)


def short_host(task: Task, need: int, offered: int) -> Infeasible:
    """The host has too little for a task that its device has room for."""
    who = f"{task.name}: with the device memory that there is, the host store"
    return _short_host(who, need, offered)


def short_host_for(task: Task, what: str) -> Infeasible:
    """The host has too little for what no device holds of this; nobody knows how much would do."""
    why = f"{what} and the host has no memory for what devices do not hold of it"
    return Infeasible(f"{task.name}: {why}; raise --host-memory", resource="host")


def _short_host(who: str, need: int, offered: int, more: str = "") -> Infeasible:
    why = f"{who} needs {exact_bytes(need)} but the host offers {exact_bytes(offered)}"
    least = f"smallest --host-memory that would do: {enough_bytes(need)}{more}"
    return Infeasible(f"{why}; {least}", need, "host")


def short_device(
    strategy: Strategy, needs: int, stays: int, offered: int, host_bytes: int | None
) -> Infeasible:
    """The device has too little even for this strategy, the least there is. stays: the least with
    which nothing has to move; host_bytes: of the host, where that is more than there is."""
    task = strategy.costs.task
    largest = max(strategy.shards, key=lambda s: s.param_bytes + s.backward_transient_bytes)
    name = task.layers[largest.first].name
    beside = "" if host_bytes is None else f", with --host-memory {enough_bytes(host_bytes)}"
    return Infeasible(
        f"{task.name}: needs {exact_bytes(needs)} on its device but the device offers "
        f"{exact_bytes(offered)}; the largest shard begins at layer {largest.first} ({name}) with "
        f"{show_bytes(largest.param_bytes)} of parameters and "
        f"{show_bytes(largest.backward_transient_bytes)} of transients{stays_whole(task)}; all of "
        f"it can stay on the device from {exact_bytes(stays)} on; "
        f"smallest --device-memory that would do{beside}: {enough_bytes(needs)}",
        needs,
    )


def short_devices(task: Task, what: str, needs: int, kind: DeviceGroup) -> Infeasible:
    """Each of several devices has too little even for this, the least there is."""
    needs, offered = needs + kind.taken_bytes, kind.device_bytes + kind.taken_bytes
    return Infeasible(
        f"{task.name}: {what} needs {exact_bytes(needs)} on a device but each offers "
        f"{exact_bytes(offered)}{stays_whole(task)}; "
        f"smallest --device-memory that would do: {enough_bytes(needs)}",
        needs,
    )
