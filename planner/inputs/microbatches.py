"""Which microbatches tasks have: the best that were measured, those asked for, or, of tasks that go
on, those that they began with. Other ones change the order of additions, so the last bits."""

from collections.abc import Iterator, Mapping, Sequence

from planner.errors import Infeasible
from plans.runlog import RunLog
from profiles.errors import FormatError
from profiles.schema import Profile

Asked = Sequence[tuple[str, int]]  # a task, or "" for all, and its size, or 0 for any


def begun(
    logs: Sequence[RunLog], done: Mapping[str, int], path: str, asked: Asked
) -> dict[str, int]:
    """The microbatches that the tasks with steps done had last, by the logs, oldest first.

    FormatError where none says so, of a task of which nothing is asked; `path` is that of the last
    log."""
    known = {task: size for log in logs for task, size in log.header.microbatch.items()}
    going_on = [task for task, steps in done.items() if steps]
    for task in kept(dict.fromkeys(going_on, 0), asked):
        if task not in known:
            raise FormatError(
                f"{path}: does not say which microbatches task {task} had, as logs of 0.4 did not; "
                f"give the size that `planner show` has for the plan that ran, --microbatch "
                f"{task}=N, or --microbatch free"
            )
    return {task: known[task] for task in going_on if task in known}


def kept(before: Mapping[str, int], asked: Asked) -> dict[str, int]:
    """The microbatches that tasks keep because nothing else was asked for."""
    told = {task for task, _ in asked}
    return {} if "" in told else {task: size for task, size in before.items() if task not in told}


def wanted(names: Sequence[str], asked: Asked) -> dict[str, int]:
    """The microbatches asked for, by task; what is said of one counts more than what is of all."""
    told = dict(asked)
    for task in told:
        if task and task not in names:
            raise FormatError(f"--microbatch: there is no task {task!r}, only {', '.join(names)}")
    if len(told) < len(asked):
        raise FormatError("--microbatch: a task, or all tasks, have more than one; give it once")
    sizes = {name: told.get(name, told.get("", 0)) for name in names}
    return {name: size for name, size in sizes.items() if size}


def measured(profile: Profile, sizes: Mapping[str, int], path: str) -> None:
    """FormatError for a size of a task that the profile does not have."""
    for task in profile.tasks:
        known = [batch.microbatch for batch in task.batches]
        if sizes.get(task.name, known[0]) not in known:
            raise FormatError(
                f"{path}: {task.name}: goes on with microbatches of {sizes[task.name]}, which were "
                f"not measured, only {', '.join(map(str, known))}; profile again, or let them "
                "change, and with them the last bits: --microbatch free"
            )


def too_small(error: Infeasible, sizes: Mapping[str, int]) -> Infeasible:
    """The error of a plan in which tasks keep these microbatches."""
    if not sizes:
        return error
    names = ", ".join(_each(sizes))
    return Infeasible(
        f"{error.message}; {names} as they began: --microbatch free lets them change, and with "
        "them the last bits",
        error.smallest,
    )


def _each(sizes: Mapping[str, int]) -> Iterator[str]:
    for task, size in sizes.items():
        yield f"{task} keeps microbatches of {size}"
