"""Workloads: what the user writes, and how `file.py:function` becomes a list of tasks.

A workload reproduces an ordinary training loop: the seed is set, the model is built, and the
default generator goes on from there, through every dropout of every microbatch of every step.
"""

import importlib
import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from executor.errors import WorkloadError, one_line
from executor.rng import CpuSource, Source
from profiles.codec import read_bytes, sha256
from profiles.schema import Precision
from profiles.units import LARGEST

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Task:
    """One model with its data, loss, optimizer and number of steps.

    data(step) gives (inputs, targets) of the whole batch, batch first, the same for the same
    step whoever asks. loss(outputs, targets) is a scalar, the mean over what it is given.
    optimizer(parameters) is called once for each shard. seed is set before the model is built.
    precision: what layers compute in, see executor/precision.py. clip: the largest norm that all
    gradients together may have, as torch.nn.utils.clip_grad_norm_ takes it.
    """

    name: str
    model: nn.Module | Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[[list[nn.Parameter]], Optimizer]
    steps: int
    seed: int = 0
    precision: Precision = "fp32"
    clip: float | None = None


def load(ref: str) -> tuple[list[Task], str]:
    """The tasks of `file.py:function` or `package.module:function`, and the source's sha256.

    The function is called without arguments. WorkloadError says in one line what is wrong.
    """
    where, colon, name = ref.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise WorkloadError(f"{ref}: a workload is file.py:function or package.module:function")
    source = _source(ref, where)
    digest = sha256(read_bytes(source))
    function = getattr(_module(ref, where, source), name, None)
    if not callable(function):
        raise WorkloadError(f"{ref}: {source} has no function {name!r}")
    try:
        tasks = function()
    except Exception as error:
        raise WorkloadError(f"{ref}: {name}() raised {one_line(error)}") from error
    return _checked(ref, tasks), digest


def _source(ref: str, where: str) -> Path:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise WorkloadError(f"{ref}: there is no file {where}")
        return path
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise WorkloadError(f"{ref}: there is no module {where}; a file's name ends in .py")
    return Path(spec.origin)


def _module(ref: str, where: str, source: Path) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        folder = str(source.resolve().parent)
        if folder not in sys.path:  # so that a workload can import its neighbours, like a script
            sys.path.append(folder)
        name = f"workload_{sha256(str(source.resolve()).encode())[:12]}"
        spec = importlib.util.spec_from_file_location(name, source)
        if spec is None or spec.loader is None:
            raise WorkloadError(f"{ref}: {source} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, WorkloadError):
            raise
        raise WorkloadError(f"{ref}: importing {source} raised {one_line(error)}") from error
    return module


def _checked(ref: str, tasks: object) -> list[Task]:
    if not isinstance(tasks, list | tuple) or not all(isinstance(t, Task) for t in tasks):
        raise WorkloadError(
            f"{ref}: returned {type(tasks).__name__}, not a list of executor.workload.Task"
        )
    if not tasks:
        raise WorkloadError(f"{ref}: returned an empty list; there is nothing to train")
    for task in tasks:
        if not isinstance(task.name, str) or not _NAME.fullmatch(task.name):
            raise WorkloadError(
                f"{ref}: task name {task.name!r} may hold only letters, digits, '_' and '-'"
            )
        if type(task.steps) is not int or not 1 <= task.steps <= LARGEST:
            raise WorkloadError(
                f"{ref}: task {task.name} has {task.steps!r} steps; "
                f"it must be a whole number from 1 to {LARGEST}"
            )
        if type(task.seed) is not int or not -(2**63) <= task.seed < 2**64:  # what torch takes
            raise WorkloadError(
                f"{ref}: task {task.name} has seed {task.seed!r}; "
                "it must be a whole number of at most 64 bits"
            )
        if task.precision not in get_args(Precision):
            raise WorkloadError(
                f"{ref}: task {task.name} has precision {task.precision!r}; "
                f"it must be one of {', '.join(get_args(Precision))}"
            )
        if task.clip is not None and not 0 < task.clip < math.inf:
            raise WorkloadError(
                f"{ref}: task {task.name} has clip {task.clip!r}; it must be a number above 0"
            )
    double = [name for name, count in Counter(t.name for t in tasks).items() if count > 1]
    if double:
        raise WorkloadError(f"{ref}: two tasks are named {double[0]}; names must differ")
    return list(tasks)


def build(task: Task, source: Source | None = None) -> tuple[nn.Module, Tensor]:
    """The task's model in train mode, and the state of `source` after building it.

    The state is where an ordinary loop on such a device would go on drawing random numbers;
    without a source, on the CPU.
    """
    torch.manual_seed(task.seed)
    try:
        model = task.model if isinstance(task.model, nn.Module) else task.model()
    except Exception as error:
        raise WorkloadError(f"task {task.name}: building the model: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"task {task.name}: model() returned {type(model).__name__}, not a torch.nn.Module"
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise WorkloadError(
                f"task {task.name}: parameter {name} has no shape until the first forward; "
                "use a layer that is told its sizes"
            )
    return model.train(), (source or CpuSource()).get()
