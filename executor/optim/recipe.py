"""The parts of a shard's optimizer: the user's optimizer, parameter groups and scheduler.

Every shard has an optimizer of its own. A scheduler may have a setting for each group, so where
there is one all of a task's groups are in each shard's optimizer, empty ones too.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LRScheduler

from executor.errors import WorkloadError, one_line
from executor.numerics import same

Factory = Callable[[list[Any]], Optimizer]
Schedule = Callable[[Optimizer], LRScheduler]
Groups = Callable[[str, nn.Parameter], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Recipe:
    """optimizer(parameters), or optimizer(groups) where a task has some; scheduler(optimizer).

    `options` of each group, in the order of the model; `number`: a parameter's group, by its id.
    """

    optimizer: Factory
    scheduler: Schedule | None = None
    options: Sequence[Mapping[str, Any]] = ()
    number: Mapping[int, int] = field(default_factory=dict)

    def make(
        self, parameters: Sequence[nn.Parameter], given: Sequence[nn.Parameter]
    ) -> tuple[Optimizer, LRScheduler | None]:
        """An optimizer of the tensors `given` for these parameters. WorkloadError for one that
        could not train in shards. Parameters that it leaves out are not updated, as ever."""
        try:
            made = self.optimizer(self._listed(parameters, given))
        except ValueError as error:
            if "empty parameter list" in str(error) and parameters:
                return SGD([{"params": []}]), None  # others of the task are not left out
            raise
        _check_optimizer(made, given)
        _own_settings(made)
        return made, None if self.scheduler is None else _scheduled(self.scheduler, made)

    def unscheduled(self, pairs: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> "Recipe":
        """The same for copies of some parameters, as (parameter, copy), which may be updated more
        often than a scheduler allows."""
        known = {id(copy): self.number[id(p)] for p, copy in pairs if id(p) in self.number}
        return replace(self, scheduler=None, number=known)

    def _listed(
        self, parameters: Sequence[nn.Parameter], given: Sequence[nn.Parameter]
    ) -> list[Any]:
        if not self.options:
            return list(given)
        members: list[list[nn.Parameter]] = [[] for _ in self.options]
        for parameter, tensor in zip(parameters, given, strict=True):
            if parameter.requires_grad:
                members[self.number[id(parameter)]].append(tensor)
        return [
            {"params": tensors, **{key: _own(value) for key, value in options.items()}}
            for tensors, options in zip(members, self.options, strict=True)
            if tensors or self.scheduler is not None
        ]


def recipe_of(
    model: nn.Module, optimizer: Factory, scheduler: Schedule | None, groups: Groups | None
) -> Recipe:
    """A task's recipe for the parameters of its model. WorkloadError for groups that are none."""
    if groups is None:
        return Recipe(optimizer, scheduler)
    options: list[Mapping[str, Any]] = []
    number = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            mine = _options(groups, name, parameter)
            known = (n for n, other in enumerate(options) if same(other, mine))
            number[id(parameter)] = found = next(known, len(options))
            if found == len(options):
                options.append(mine)
    return Recipe(optimizer, scheduler, options, number)


def _options(groups: Groups, name: str, parameter: nn.Parameter) -> Mapping[str, Any]:
    try:
        found = groups(name, parameter)
    except Exception as error:
        raise WorkloadError(f"groups({name!r}, parameter) raised {one_line(error)}") from error
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        raise WorkloadError(
            f"groups({name!r}, parameter) returned {type(found).__name__}, not a mapping of "
            'options such as {"lr": 1e-3}; an empty one is for the optimizer\'s defaults'
        )
    if "params" in found:
        raise WorkloadError(f"groups({name!r}, parameter) may not say params: they are found by it")
    return dict(found)


def _check_optimizer(made: object, given: Sequence[nn.Parameter]) -> None:
    if not isinstance(made, Optimizer):
        raise WorkloadError(
            f"optimizer(parameters) returned {type(made).__name__}, not a torch.optim.Optimizer"
        )
    kind = type(made).__name__
    if isinstance(made, SparseAdam):
        raise WorkloadError(f"{kind} wants sparse gradients, and here all are dense; use Adam")
    if _wants_arguments(made.step):
        raise WorkloadError(
            f"{kind}.step wants a closure that computes the loss again, which a timetable has no "
            "time for; use an optimizer whose step() takes nothing"
        )
    held = [p for group in made.param_groups for p in group["params"]]
    if {id(p) for p in held} - set(map(id, given)):
        raise WorkloadError(
            f"the {kind} holds parameters that it was not given; make it of the list that "
            "optimizer(parameters) is called with, since each shard has an optimizer of its own"
        )
    if len(set(map(id, held))) < len(held):
        raise WorkloadError(f"the {kind} holds a parameter twice and would update it twice")


def _wants_arguments(method: Callable[..., Any]) -> bool:
    """True if a method cannot be called without arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        found = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # written in C, it may have none to read
        return False
    return any(p.default is p.empty and p.kind in kinds and p.name != "self" for p in found)


def _own_settings(made: Optimizer) -> None:
    """Tensors that a factory gives to the optimizers of all shards become each one's own: a
    scheduler writes them in place, once for each optimizer."""
    copies: dict[int, Tensor] = {}
    for group in made.param_groups:
        for key, value in group.items():
            if isinstance(value, Tensor):
                group[key] = copies.setdefault(id(value), value.detach().clone())


def _scheduled(scheduler: Schedule, optimizer: Optimizer) -> LRScheduler:
    shared = [id(g["lr"]) for g in optimizer.param_groups if isinstance(g.get("lr"), Tensor)]
    if len(set(shared)) < len(shared):
        raise WorkloadError(
            "groups share one tensor as their lr, which the scheduler would change once for each; "
            "give each group a tensor of its own, or a number"
        )
    try:
        made = scheduler(optimizer)
    except Exception as error:
        raise WorkloadError(f"scheduler(optimizer) raised {one_line(error)}") from error
    if not isinstance(made, LRScheduler):
        raise WorkloadError(
            f"scheduler(optimizer) returned {type(made).__name__}, not a "
            "torch.optim.lr_scheduler.LRScheduler"
        )
    if _wants_arguments(made.step):
        raise WorkloadError(
            f"{type(made).__name__}.step wants a metric, and the next step begins before this "
            "one's loss is known; use a scheduler that goes by the number of steps"
        )
    if getattr(made, "optimizer", optimizer) is not optimizer:
        raise WorkloadError(
            f"the {type(made).__name__} is of another optimizer than the one that "
            "scheduler(optimizer) was called with"
        )
    return made


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
