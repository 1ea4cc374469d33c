"""Evaluation in a plan: rounds of forwards that change nothing, after every so many steps.

a ████ (100 steps)  a.eval ▒ (8 batches)  a ████  a.eval ▒  a ██
"""

from collections.abc import Iterator

from plans.order.segments import first_steps
from plans.schema import Plan, Program, Task
from profiles.findings import few
from profiles.schema import Evaluation


def due_steps(evaluation: Evaluation | None, done: int, steps: int) -> range:
    """The numbers of steps after which a task evaluates: `done` are behind it, `steps` follow."""
    if evaluation is None:
        return range(0)
    first = done if evaluation.owed else (done // evaluation.every + 1) * evaluation.every
    return range(first, done + steps + 1, evaluation.every)


def due_of(task: Task) -> range:
    """The numbers of steps, those before this plan too, after which it evaluates."""
    return due_steps(task.evaluation, task.done, task.steps)


def judge(plan: Plan, task: str) -> Program | None:
    """The program that evaluates a task; the first, where there are several."""
    return next((p for p in plan.programs if p.evaluates and task in p.tasks), None)


def evaluations(plan: Plan) -> Iterator[str]:
    """Each task evaluates after the steps where it should, all batches in one segment, and never
    trains past such a step before."""
    waiting = {task.name: due_of(task) for task in plan.tasks}
    for task in plan.tasks:
        if task.evaluation and task.evaluation.owed and task.done % task.evaluation.every:
            yield (
                f"{task.name}: owes an evaluation after step {task.done}, "
                f"no multiple of {task.evaluation.every}"
            )
    for index, (segment, steps) in enumerate(zip(plan.segments, first_steps(plan), strict=True)):
        program = plan.program(segment.program)
        for name, done in steps.items():
            due, end = waiting[name], done + segment.rounds
            if program.evaluates:
                yield from _evaluates(index, segment.rounds, plan.task(name), done, due)
                waiting[name] = due[1:] if _next(due) == done else due
            elif due and end > due[0]:
                yield (
                    f"segment {index}: trains {name} up to step {end}, but it evaluates after "
                    f"step {due[0]}"
                )
                waiting[name] = due[-((due[0] - end) // due.step) :]
    for name, due in waiting.items():
        if due:
            yield f"{name}: is never evaluated after step {few(due)}"


def _next(due: range) -> int | None:
    return due[0] if due else None


def _evaluates(index: int, rounds: int, task: Task, done: int, due: range) -> Iterator[str]:
    """Errors of a segment that evaluates the task after `done` steps."""
    where = f"segment {index}: evaluates {task.name} after step {done}"
    if _next(due) != done:
        wanted = f"after step {due[0]} next" if due else "no more"
        yield f"{where}, but it is evaluated {wanted}"
        return
    batches = task.evaluation.batches if task.evaluation else 0
    if rounds != batches:
        yield f"{where} in {rounds} rounds, expected {batches} batches"
