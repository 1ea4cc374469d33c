"""The rest that runs left to do: tasks that go on from their checkpoints, with fewer steps and the
microbatches that they began with, added as they were. Others would change the order of additions,
so the last bits."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from planner.errors import Infeasible
from plans.additions import Additions
from plans.runlog import RunLog
from profiles.errors import FormatError
from profiles.schema import Profile, Task

Asked = Sequence[tuple[str, int]]  # a task, or "" for all, and its microbatch, or 0 for any


class Rest(NamedTuple):
    """The profile of what is left, the steps that its tasks have done by their checkpoints, and the
    microbatches that they had last; of the tasks that are to keep these, how several devices added
    them, () where one did."""

    profile: Profile
    done: dict[str, int] = {}
    microbatch: dict[str, int] = {}
    additions: dict[str, Additions] = {}


def after(
    profile: Profile, logs: Sequence[RunLog], path: str, asked: Asked, window: int = 1
) -> Rest:
    """The rest that these runs left to do, microbatches as asked for. A task for which the size is
    asked that it had keeps it as if nothing was asked.

    `logs`: oldest first, later checkpoints count; `path` is that of the last. A task without a
    checkpoint begins anew; those that a rule stopped or that failed are left out. An evaluation
    that was due at a checkpoint and that no log has is owed. Tasks with lengths get microbatches
    anew, but keep the order of their samples, of which `window` is asked. FormatError when nothing
    is left.
    """
    done = {record.task: record.step for log in logs for record in log.checkpoints}
    over = {stop.task for log in logs for stop in log.stops}
    over |= {drop.task for log in logs for drop in log.drops}
    evaluated = {(record.task, record.step) for log in logs for record in log.evaluations}
    left = tuple(
        _rest(task, done.get(task.name, 0), evaluated)
        for task in profile.tasks
        if task.name not in over and done.get(task.name, 0) < task.steps
    )
    if not left:
        raise FormatError(f"{path}: every task of the profile is done; there is nothing to plan")
    steps = {task.name: done.get(task.name, 0) for task in left}
    _same_order(logs, left, steps, window, path)
    known = {task: size for log in logs for task, size in log.header.microbatch.items()}
    sizes = dict(asked)
    names = [task.name for task in left if not task.lengths]
    going_on = [name for name in names if steps[name] and name in known]
    keeping = [task for task in going_on if sizes.get(task, sizes.get("")) in (None, known[task])]
    had = {task: known[task] for task in going_on}
    sums = {
        task: log.header.additions.get(task, ()) for log in logs for task in log.header.microbatch
    }
    alike = {task: sums[task] for task in keeping}
    return Rest(structs.replace(profile, tasks=left), steps, had, alike)


def _same_order(
    logs: Sequence[RunLog], tasks: Sequence[Task], steps: Mapping[str, int], window: int, path: str
) -> None:
    """FormatError for a task whose samples came in another order than is asked for now: steps that
    are left would train some of them again, and others never."""
    for name in (task.name for task in tasks if task.lengths and steps[task.name]):
        had = [log.header for log in logs for one in log.checkpoints if one.task == name][-1]
        if (was := had.reordered.get(name, 1)) != window:
            raise FormatError(
                f"{path}: {name} has trained {steps[name]} steps with its samples reordered within "
                f"windows of {was} step(s), and goes on so; give --reorder-window {was}"
            )


def _rest(task: Task, steps: int, evaluated: Collection[tuple[str, int]]) -> Task:
    evaluation = task.evaluation
    if evaluation:
        due = steps > 0 and steps % evaluation.every == 0
        owed = due and (task.name, steps) not in evaluated
        evaluation = structs.replace(evaluation, owed=owed)
    return structs.replace(task, steps=task.steps - steps, evaluation=evaluation)


def too_small(error: Infeasible, sizes: Mapping[str, int]) -> Infeasible:
    """The error of a plan in which tasks keep these microbatches."""
    if not sizes:
        return error
    names = ", ".join(f"{task} keeps microbatches of {size}" for task, size in sizes.items())
    return Infeasible(
        f"{error.message}; {names} as they began: --microbatch free lets them change, and with "
        "them the last bits",
        error.smallest,
    )
