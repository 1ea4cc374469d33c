"""`run` in one of several processes that torchrun has started."""

from collections.abc import Sequence

from executor import distributed
from executor.cutting import left_out, planned
from executor.records import Options, Result
from executor.workload import Task
from plans.schema import Plan
from profiles.errors import GantryError


def leads() -> bool:
    """True in the process that leads, or is alone."""
    known = distributed.world()
    return known is None or known.rank == 0


def lead(plan: Plan, tasks: Sequence[Task], options: Options) -> Result:
    """As `executor.run`, with the other processes."""
    known = distributed.world()
    if known is None:
        from executor import run

        return run(plan, tasks, options)
    with left_out():
        return distributed.lead(plan, tasks, options, planned, known, _inputs(plan, options))


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
    return {"plan": options.plan_sha256 or "", **sources}
