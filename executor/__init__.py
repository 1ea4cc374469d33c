"""Profiles models and replays checked plans with PyTorch: a plan is data, the executor decides
nothing.

    from executor import Evaluation, Sweep, Task, causal_lm, grid, hyperband, profile, run

Names are found when asked for, so that importing one part does not load the others.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from executor.profiling.profiler import Options as ProfileOptions
    from executor.records.options import Options
    from executor.records.result import Result
    from executor.workload.huggingface import causal_lm
    from executor.workload.sweep import Sweep, grid, hyperband
    from executor.workload.task import Evaluation, Task
    from plans.schema import Plan
    from profiles.schema import Profile

__all__ = ["Evaluation", "Sweep", "Task", "causal_lm", "grid", "hyperband", "profile", "run"]


def profile(ref: str, options: "ProfileOptions") -> "Profile":
    """Measure every layer of the tasks of `file.py:function`; executor.profiling.profiler.Options
    says on what. WorkloadError for a model that cannot be cut or trained."""
    from executor.profiling import profiler

    return profiler.profile(ref, options)


def run(plan: "Plan", tasks: "Sequence[Task]", options: "Options | None" = None) -> "Result":
    """Train `tasks` as the proven `plan` says; their models, losses and optimizer states.

    `options`: executor.records.options.Options; its `folder` has the log and the states of tasks,
    and a run goes on from there. RunError names the op that failed."""
    from executor import driver
    from executor.cutting import left_out, planned
    from executor.records import Options, again

    with left_out():
        return driver.run(plan, tasks, again(plan, options or Options()), planned)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.workload"), name)
