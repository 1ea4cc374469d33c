"""The rest that runs left to do: tasks that can go on from their checkpoints, with fewer steps."""

from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from plans.runlog import RunLog
from profiles.errors import FormatError
from profiles.schema import Profile, Task


def after(profile: Profile, logs: Sequence[RunLog], path: str) -> tuple[Profile, dict[str, int]]:
    """The profile of what is left, and the steps that its tasks have done by their checkpoints.

    `logs`: oldest first, later checkpoints count; `path` is that of the last. A task without a
    checkpoint begins anew; those that a rule stopped or that failed are left out. An evaluation
    that was due at a checkpoint and that no log has is owed. FormatError when nothing is left.
    """
    done = {record.task: record.step for log in logs for record in log.checkpoints}
    over = {record.task for log in logs for record in log.stops}
    over |= {record.task for log in logs for record in log.drops}
    tasks = [task for task in profile.tasks if task.name not in over]
    evaluated = {(record.task, record.step) for log in logs for record in log.evaluations}
    left = tuple(_rest(task, done, evaluated) for task in tasks if _goes_on(task, done))
    if not left:
        raise FormatError(f"{path}: every task of the profile is done; there is nothing to plan")
    steps = {task.name: done.get(task.name, 0) for task in left}
    return structs.replace(profile, tasks=left), steps


def _goes_on(task: Task, done: Mapping[str, int]) -> bool:
    return done.get(task.name, 0) < task.steps


def _rest(task: Task, done: Mapping[str, int], evaluated: Collection[tuple[str, int]]) -> Task:
    steps, evaluation = done.get(task.name, 0), task.evaluation
    if evaluation:
        due = steps > 0 and steps % evaluation.every == 0
        owed = due and (task.name, steps) not in evaluated
        evaluation = structs.replace(evaluation, owed=owed)
    return structs.replace(task, steps=task.steps - steps, evaluation=evaluation)
