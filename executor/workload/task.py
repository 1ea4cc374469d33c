"""Tasks: a model with its data, loss, optimizer and number of steps, as the user writes them.

A task reproduces an ordinary training loop: the seed is set, the model is built, and the
default generator goes on from there, through every dropout of every microbatch of every step.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from executor.errors import MismatchError, WorkloadError, one_line
from executor.numerics import CpuSource, Source
from executor.optim import Recipe, recipe_of
from profiles.schema import Precision
from profiles.units import LARGEST

_DATA = (
    "a function that gives the same batch whenever it is asked for a step; "
    "executor.workload.loader(dataset, batch_size) makes one of a dataset"
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True)
class Evaluation:
    """After every `every` steps the mean loss of `batches` batches, data(0) to data(batches - 1),
    each as large as one of the task, with the task's loss, in eval mode.

    data(n) gives the same batch whenever it is asked; no parameter, buffer or random number
    changes.

    metrics: functions by name, fn(outputs, targets), or fn(outputs, inputs) in a task without loss:
    a number for each sample, as a tensor of [samples], in a task with lengths for each token, of
    which those count that have a target. The mean over all of them is exact, so that microbatches
    do not count.

    A task with lengths has `lengths` here, too, and no batches: the tokens of every sample, all of
    which are evaluated each time. data(samples) gives them as the task's own data does. The loss is
    the sum over all tokens divided by the sum of `weights`, or of what samples count in the task.
    """

    every: int
    data: Callable[[Any], Any]  # of the number of a batch, or of a list of samples
    batches: int | None = None
    lengths: Any = field(default=None, compare=False)
    weights: Any = field(default=None, compare=False)
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)


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
    called with the list of groups.

    weight(batch) is the number that a batch, or a microbatch of it, counts in a mean: as of the
    tokens that have a loss, where the loss is the mean over them. It takes what data gives, and is
    a sum over its samples, 0 or more. The part of a microbatch in a step's loss and gradients, in
    all replicas, is its weight over that of the whole batch, and none where its weight is 0; an
    evaluation is the mean over all its batches. A batch whose whole weight is 0 ends the run.

    lengths: the tokens of every sample, where they differ. Step t has `batch` samples, t * batch
    and those that follow, and begins again after the last one; data(samples) gives a list of
    (inputs, targets), one for each of these numbers, whose tensors are tokens first, without a
    batch dimension. A microbatch has sequences one behind the other, and the model is called with
    arguments(inputs, positions, sequences), where positions count from 0 in each sequence and
    sequences number them; by default x becomes (x, positions, sequences), and a dict gets keys
    position_ids and sequence_ids. loss(outputs, targets) is the sum over its tokens; it is divided
    by what all samples of the step count, each its tokens that have a target (not -100, where
    targets are signed integers), or weight((inputs, targets)), or `weights`, a number for each
    sample. These are known before: otherwise every process of a run asks for all samples of a step.
    A sample that counts 0 has no loss."""

    name: str
    model: nn.Module | Callable[[], nn.Module]
    data: Callable[[Any], Any]  # of a step, or of a list of samples
    loss: Callable[[Any, Any], Tensor] | None
    optimizer: Callable[[list[Any]], Optimizer]
    steps: int
    seed: int = 0
    precision: Precision = "fp32"
    clip: float | None = None
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    groups: Callable[[str, nn.Parameter], Mapping[str, Any]] | None = None
    evaluate: Evaluation | None = None
    lengths: Any = field(default=None, compare=False)  # integers: a list, an array or a tensor
    batch: int | None = None
    weights: Any = field(default=None, compare=False)
    arguments: Callable[[Any, Tensor, Tensor], Any] | None = None
    weight: Callable[[Any], Any] | None = None

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
            f"{ref}: returned {type(tasks).__name__}, not a list of executor.workload.task.Task; "
            "return such a list"
        )
    if not tasks:
        raise WorkloadError(
            f"{ref}: returned an empty list; there is nothing to train, return a task"
        )
    for task in tasks:
        for name, value, fits, must in _rules(task):
            if not fits:
                shown = repr(value) if isinstance(value, str | int | float | None) else _kind(value)
                raise WorkloadError(
                    f"{ref}: task {task.name}: {name} is {shown}; it must be {must}"
                )
    double = [name for name, count in Counter(t.name for t in tasks).items() if count > 1]
    if double:
        raise WorkloadError(f"{ref}: two tasks are named {double[0]}; names must differ")
    return list(tasks)


def _rules(task: Task) -> Iterator[tuple[str, Any, bool, str]]:
    """For each setting its name, its value, True if a training can have that, and what it must
    be."""
    word = isinstance(task.name, str) and _NAME.fullmatch(task.name) is not None
    yield "name", task.name, word, "of letters, digits, '_' and '-', 200 at most"
    whole = f"a whole number from 1 to {LARGEST}"
    yield "steps", task.steps, _counts(task.steps, LARGEST), whole
    wide = type(task.seed) is int and -(2**63) <= task.seed < 2**64  # what torch takes
    yield "seed", task.seed, wide, "a whole number of at most 64 bits"
    known = get_args(Precision)
    yield "precision", task.precision, task.precision in known, f"one of {', '.join(known)}"
    limit = isinstance(task.clip, int | float) and 0 < task.clip < math.inf
    yield "clip", task.clip, task.clip is None or limit, "a number above 0"
    weigh = "a function that gives the number that a batch counts"
    yield "weight", task.weight, task.weight is None or callable(task.weight), weigh
    yield "data", task.data, callable(task.data), _DATA
    function = "a function, since each shard has an optimizer of its own"
    for name, given in (("scheduler", task.scheduler), ("groups", task.groups)):
        yield name, given, given is None or callable(given), function
    if (asked := task.evaluate) is not None:
        made = isinstance(asked, Evaluation)
        many = "batches" if task.lengths is None else "lengths"
        call = f"executor.workload.task.Evaluation(every=..., data=..., {many}=...)"
        yield "evaluate", asked, made, call
        yield "evaluate.data", asked.data, callable(asked.data), _DATA
        own = f"a whole number from 1 to {task.steps}, the task's steps"
        yield "evaluate.every", asked.every, _counts(asked.every, task.steps), own
        yield from _rules_of_metrics(asked.metrics)
    if task.lengths is not None:
        yield from _rules_of_lengths(task)
        return
    without = "left out in a task without lengths"
    for name in ("batch", "weights", "arguments"):
        given = getattr(task, name)
        yield name, given, given is None, without
    if asked is not None:
        yield "evaluate.batches", asked.batches, _counts(asked.batches, LARGEST), whole
        yield "evaluate.lengths", asked.lengths, asked.lengths is None, without
        yield "evaluate.weights", asked.weights, asked.weights is None, without


def _rules_of_metrics(metrics: Any) -> Iterator[tuple[str, Any, bool, str]]:
    """The same for the metrics of evaluations."""
    named = isinstance(metrics, Mapping)
    yield "evaluate.metrics", metrics, named, 'a dict of functions by name, {"accuracy": fn}'
    for name, given in metrics.items():
        word = isinstance(name, str) and _NAME.fullmatch(name) is not None
        yield f"evaluate.metrics: {name!r}", name, word, "a name of letters, digits, '_' and '-'"
        function = "a function of outputs and targets that gives a number for each sample"
        yield f"evaluate.metrics: {name}", given, callable(given), function


def _rules_of_lengths(task: Task) -> Iterator[tuple[str, Any, bool, str]]:
    """The same for what a task with lengths has."""
    yield from _rules_of_samples("", task)
    count = len(task.lengths)
    own = f"a whole number from 1 to {count}, the number of lengths; a step has so many samples"
    yield "batch", task.batch, _counts(task.batch, count), own
    one = task.weight is None or task.weights is None
    yield "weight", task.weight, one, "left out beside weights"
    called = task.arguments is None or callable(task.arguments)
    yield "arguments", task.arguments, called, "a function of inputs, positions and sequences"
    summed = "a function that gives the sum over the tokens, in a task with lengths"
    yield "loss", task.loss, task.loss is not None, summed
    if (asked := task.evaluate) is not None:
        without = "left out in a task with lengths, which is evaluated on `lengths` samples"
        yield "evaluate.batches", asked.batches, asked.batches is None, without
        yield from _rules_of_samples("evaluate.", asked)


def _rules_of_samples(whose: str, of: Task | Evaluation) -> Iterator[tuple[str, Any, bool, str]]:
    """The same for lengths and weights of samples."""
    lengths = _array(of.lengths)
    whole = lengths.ndim == 1 and lengths.size > 0 and lengths.dtype.kind in "iu"
    words = "whole numbers in a row, the tokens of each sample"
    yield f"{whose}lengths", of.lengths, whole, words
    for n in np.flatnonzero((lengths < 1) | (lengths >= 1 << 32))[:1]:
        most = f"a whole number from 1 to {(1 << 32) - 1}"
        yield f"{whose}lengths[{n}]", int(lengths[n]), False, most
    if of.weights is not None:
        weights = _array(of.weights)
        numbers = weights.shape == lengths.shape and weights.dtype.kind in "iuf"
        many = f"as many numbers as there are lengths, {len(lengths)}"
        yield f"{whose}weights", of.weights, numbers, many
        for n in np.flatnonzero(~((weights >= 0) & (weights < math.inf)))[:1]:
            yield f"{whose}weights[{n}]", float(weights[n]), False, "a finite number from 0 on"


def _array(given: Any) -> np.ndarray[Any, Any]:
    """The values as an array; one of objects where they are none."""
    try:
        return np.asarray(given)
    except (ValueError, TypeError, RuntimeError):
        return np.empty((), object)


def _counts(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def build(task: Task, source: Source | None = None) -> tuple[nn.Module, Tensor]:
    """The task's model in train mode, and the state of `source` after building it.

    The state is where an ordinary loop on such a device would go on drawing random numbers;
    without a source, on the CPU.
    """
    torch.manual_seed(task.seed)
    try:
        model = task.model if isinstance(task.model, nn.Module) else task.model()
    except MismatchError:
        raise
    except Exception as error:
        raise WorkloadError(f"task {task.name}: building the model: {one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"task {task.name}: model() returned {type(model).__name__}, not a torch.nn.Module; "
            "return one"
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
