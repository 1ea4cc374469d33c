"""`run` in one of several processes that torchrun has started."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from executor import distributed
from executor.cutting import left_out, planned
from executor.records import Options, Result, checkpoint
from executor.workload import Task
from plans.schema import Plan
from profiles.errors import GantryError


def leads() -> bool:
    """True in the process that leads, or is alone."""
    known = distributed.world()
    return known is None or known.rank == 0


@contextmanager
def lead(plan: Plan, tasks: Sequence[Task], options: Options) -> Iterator[Result]:
    """As `executor.run`, with the other processes; within, they still have their states."""
    known = distributed.world()
    if known is None:
        from executor import run

        yield run(plan, tasks, options)
        return
    with left_out():
        led = plan, tasks, options, planned, known, _inputs(plan, options)
        with distributed.lead(*led) as result:
            yield result


def follow(plan: Plan, tasks: Sequence[Task], options: Options) -> int:
    """Do what the process that leads says; the exit code. It tells what went wrong."""
    known = distributed.world()
    assert known, "one alone leads"
    try:
        with left_out():
            return distributed.follow(plan, tasks, options, planned, known, _inputs(plan, options))
    except GantryError as error:
        return error.exit_code


def _inputs(plan: Plan, options: Options) -> distributed.Inputs:
    """The files that have to be the same in all processes, by name."""
    sources = {f"workload {task.workload.ref}": task.workload.sha256 for task in plan.tasks}
    begun = [task for task in plan.tasks if task.done and options.resume]
    files = [checkpoint.path_of(options.resume or Path(), task.name, task.done) for task in begun]
    kept = {f"checkpoint {file.name}": checkpoint.identity(file) for file in files}
    return {"plan": options.plan_sha256 or "", **sources, **kept}
