"""A program with all that its ops name: its tasks, their buffers in the host store, its own ones.

A program that evaluates looks at its tasks as at ones that keep nothing and have no gradients, so
that the checker's other rules hold for it as they are: what it reads must be the store's.
"""

from typing import NamedTuple

from msgspec import structs

from plans.schema import Buffer, Plan, Program, Role, Task
from plans.timing import kinds_of, of_kind


class Entry(NamedTuple):
    """A value that the store keeps between segments."""

    task: str
    shard: int
    role: Role
    bytes: int


class View(NamedTuple):
    """A program with the tasks it trains, their store and every buffer that its ops name.

    kept: the host buffers that hold the tasks' state before enter, and must after leave.
    """

    program: Program
    tasks: dict[str, Task]
    buffers: dict[str, Buffer]
    kept: dict[str, Entry]


def view(program: Program, tasks: dict[str, Task], host: dict[str, Buffer]) -> View:
    """`program` in a plan of these tasks and host buffers."""
    own = {name: tasks[name] for name in program.tasks}
    if program.evaluates:
        own = {name: evaluated(task) for name, task in own.items()}
    names = {name for op in program.ops for name in (*op.reads.values(), *op.writes.values())}
    every = [stored(task) for task in own.values()]
    kept = {name: entry for one in every for name, entry in one.items() if name in host}
    buffers = {name: host[name] for name in sorted((names | kept.keys()) & host.keys())}
    return View(program, own, buffers | {b.name: b for b in program.buffers}, kept)


def by_kind(view: View) -> tuple[View, ...]:
    """The view as if all rounds were of one kind, for each of its kinds: its task has as many
    microbatches as they have."""
    if not view.program.tokens:
        return (view,)
    return tuple(
        view._replace(
            program=of_kind(view.program, number),
            tasks={
                name: structs.replace(task, microbatches=len(kind.tokens))
                for name, task in view.tasks.items()
            },
        )
        for number, kind in enumerate(kinds_of(view.program))
    )


def evaluated(task: Task) -> Task:
    """The task as an evaluating program sees it: nothing is kept, nothing is ever updated."""
    shards = tuple(
        structs.replace(shard, activations="recompute", saved_bytes=0, grad_bytes=0)
        for shard in task.shards
    )
    return structs.replace(task, norm_bytes=0, shards=shards)


def stored(task: Task) -> dict[str, Entry]:
    """A task's buffers in the host store between segments, by name, of values that have bytes. Its
    base is there in the name of the first task that has it."""
    kept: dict[str, Entry] = {}
    for number, shard in enumerate(task.shards):
        params = 0 if shard.cast else shard.param_bytes
        sizes: dict[Role, int] = {
            "param": params,
            "base": shard.base_bytes if task.base else 0,
            "state": shard.state_bytes,
        }
        for role, size in sizes.items():
            if size:
                owner = task.base if role == "base" else task.name
                kept[f"{owner}.s{number}.{role}"] = Entry(owner, number, role, size)
    return kept


def base_owners(plan: Plan) -> dict[str, str]:
    """For each task with a base the first one that has it in the same bytes of the host store."""
    begins = {b.name: b.offset for b in plan.host.buffers if b.name.endswith(".base")}
    firsts, found = dict[int | None, str](), dict[str, str]()
    for task in plan.tasks:
        own = [name for name in stored(task) if name.endswith(".base")] if task.base else []
        if own:
            found[task.name] = firsts.setdefault(begins.get(own[0]), task.name)
    return found
