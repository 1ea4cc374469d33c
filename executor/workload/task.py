"""Tasks: a model with its data, loss, optimizer and number of steps, as the user writes them.

A task reproduces an ordinary training loop: the seed is set, the model is built, and the
default generator goes on from there, through every dropout of every microbatch of every step.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from executor.errors import WorkloadError, one_line
from executor.numerics import CpuSource, Source
from executor.optim import Recipe, recipe_of
from profiles.schema import Precision
from profiles.units import LARGEST

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True)
class Evaluation:
    """After every `every` steps the mean loss of `batches` batches, data(0) to data(batches - 1),
    each as large as one of the task, with the task's loss, in eval mode.

    data(n) gives the same batch whenever it is asked; no parameter, buffer or random number
    changes."""

    every: int
    data: Callable[[int], Any]
    batches: int


@dataclass(frozen=True)
class Task:
    """One model with its data, loss, optimizer and number of steps.

    data(step) gives (inputs, targets) of the whole batch, the same for the same step whoever asks.
    inputs: a tensor (model(x)), a tuple (model(*x)) or a dict (model(**x)); targets: any pytree;
    all tensors batch first. loss(outputs, targets) is a scalar, the mean over what it is given.
    loss None: data gives inputs only, and the model returns its loss: a scalar, `.loss`, ["loss"]
    or the first element. optimizer(parameters) is called once for each shard. seed is set before
    the model is built. precision: what layers compute in, see executor/numerics/precision.py. clip:
    the largest norm that all gradients together may have, as torch.nn.utils.clip_grad_norm_ takes
    it. scheduler(optimizer) is called once for each shard and stepped after every step, also where
    fp16 leaves one out. groups(name, parameter) gives the optimizer's options for a parameter that
    learns, by its name in the model; those of equal options are one group, and optimizer is then
    called with the list of groups."""

    name: str
    model: nn.Module | Callable[[], nn.Module]
    data: Callable[[int], Any]
    loss: Callable[[Any, Any], Tensor] | None
    optimizer: Callable[[list[Any]], Optimizer]
    steps: int
    seed: int = 0
    precision: Precision = "fp32"
    clip: float | None = None
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    groups: Callable[[str, nn.Parameter], Mapping[str, Any]] | None = None
    evaluate: Evaluation | None = None

    def recipe(self, model: nn.Module) -> Recipe:
        """The recipe of optimizers for parameters of the task's model."""
        try:
            return recipe_of(model, self.optimizer, self.scheduler, self.groups)
        except WorkloadError as error:
            raise WorkloadError(f"task {self.name}: {error}") from error.__cause__


def checked(ref: str, tasks: object) -> list[Task]:
    """The tasks that `ref` returned; WorkloadError for a value that no training can have."""
    if not isinstance(tasks, list | tuple) or not all(isinstance(t, Task) for t in tasks):
        raise WorkloadError(
            f"{ref}: returned {type(tasks).__name__}, not a list of executor.workload.task.Task"
        )
    if not tasks:
        raise WorkloadError(f"{ref}: returned an empty list; there is nothing to train")
    for task in tasks:
        if not isinstance(task.name, str) or not _NAME.fullmatch(task.name):
            raise WorkloadError(
                f"{ref}: task name {task.name!r} may hold only letters, digits, '_' and '-', "
                "200 at most"
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
        if task.clip is not None and not _is_limit(task.clip):
            raise WorkloadError(
                f"{ref}: task {task.name} has clip {task.clip!r}; it must be a number above 0"
            )
        for what, given in (("scheduler", task.scheduler), ("groups", task.groups)):
            if given is not None and not callable(given):
                raise WorkloadError(
                    f"{ref}: task {task.name} has a {type(given).__name__} as {what}; it must be "
                    "a function, since each shard has an optimizer of its own"
                )
        _check_evaluation(ref, task)
    double = [name for name, count in Counter(t.name for t in tasks).items() if count > 1]
    if double:
        raise WorkloadError(f"{ref}: two tasks are named {double[0]}; names must differ")
    return list(tasks)


def _check_evaluation(ref: str, task: Task) -> None:
    """WorkloadError for an evaluation that could never be."""
    if task.evaluate is None:
        return
    where = f"{ref}: task {task.name}"
    if not isinstance(task.evaluate, Evaluation) or not callable(task.evaluate.data):
        raise WorkloadError(
            f"{where}: evaluate must be executor.workload.task.Evaluation(every=..., data=..., "
            "batches=...), with a function as data"
        )
    for what, count, most in (
        ("every", task.evaluate.every, task.steps),
        ("batches", task.evaluate.batches, LARGEST),
    ):
        if type(count) is not int or not 1 <= count <= most:
            raise WorkloadError(
                f"{where} has evaluate.{what} {count!r}; it must be a whole number from 1 to {most}"
                + (", the task's steps" if what == "every" else "")
            )


def _is_limit(clip: object) -> bool:
    return isinstance(clip, int | float) and 0 < clip < math.inf


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
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"module {name}" if name else "the model"
            raise WorkloadError(
                f"task {task.name}: {what} is compiled ({type(module).__name__}), so it can be "
                "neither cut into layers nor copied to where its parameters are; leave out "
                "torch.jit.script and torch.jit.trace and give the module itself"
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise WorkloadError(
                f"task {task.name}: parameter {name} has no shape until the first forward; "
                "use a layer that is told its sizes"
            )
        if parameter.device.type != "cpu":
            raise WorkloadError(
                f"task {task.name}: parameter {name} is on {parameter.device} when model() is "
                "done; build the model on the CPU, the plan says what goes to which device when"
            )
    return model.train(), (source or CpuSource()).get()
