"""Plans in some microbatches and layouts, and a plain loop of whole batches: what a user means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from support.architectures import architecture, tokens, vectors
from support.plain import Plain, Share, train
from support.quick import built, measured
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from executor.driver import Result
from executor.profiling import task as task_profiler
from executor.workload.task import Task
from planner.inputs import only_microbatch
from plans.schema import Plan
from profiles.schema import Profile

BATCH = 8
SIZES = (1, 2, 4, 8)  # microbatches
CLOSE = 1e-5


def eight(data: Callable[[int], Any], step: int) -> Any:
    """Eight samples of the data of two steps."""
    return tree_map(lambda a, b: torch.cat([a, b])[:BATCH], data(2 * step), data(2 * step + 1))


def masked(step: int) -> dict[str, Tensor]:
    """Rows of text of which some have few targets, and two of the last step none."""
    batch = eight(tokens, step)
    for row in range(BATCH):
        batch["labels"][row, 1 + (3 * row + step) % 8 :] = -100
    batch["labels"][: 2 * (step % 2)] = -100
    return batch


def valid(batch: Mapping[str, Tensor]) -> Tensor:
    return (batch["labels"][:, 1:] != -100).sum()


def encoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16)
    )


def info_nce(views: Tensor, _: Tensor) -> Tensor:
    """Half of what is made of a sample has to find the other half among those of all samples."""
    one, other = (F.normalize(view, dim=-1) for view in views.chunk(2, -1))
    return F.cross_entropy(one @ other.T / 0.1, torch.arange(len(one)))


def undisturbed(model: Any) -> nn.Module:
    """Without dropout, which draws other numbers for other microbatches."""
    made: nn.Module = model()
    for module in made.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    return made


class Kind(NamedTuple):
    """A task; the weights of its microbatches, which nobody told it; True if its batch stays
    whole."""

    task: Task
    weight: Callable[[Any], Any] | None = None
    whole: bool = False


def kinds() -> dict[str, Kind]:
    """By name."""
    found = {
        "resnet18": Kind(architecture("resnet18"), whole=True),
        "unet": Kind(architecture("unet"), whole=True),
        "gpt2": Kind(replace(architecture("gpt2"), data=partial(masked)), valid),
        "vit": Kind(architecture("vit")),
    }
    for name, kind in found.items():
        data = kind.task.data if name == "gpt2" else partial(eight, kind.task.data)
        task = replace(kind.task, data=data, model=partial(undisturbed, kind.task.model))
        found[name] = kind._replace(task=task)
    pairs = replace(
        found["vit"].task,
        name="info-nce",
        model=encoder,
        data=partial(eight, vectors),
        loss=info_nce,
    )
    return found | {"info-nce": Kind(pairs, whole=True)}


def planned(made: Profile, layout: str, microbatches: int | None) -> Plan:
    """A plan in this layout; None: microbatches are not asked for. Infeasible without one."""
    asked = only_microbatch(made, BATCH // microbatches) if microbatches else made
    return built(asked, layout="" if layout == "1" else layout)


def oracle(plan: Plan, kind: Kind) -> Plain:
    """The plain loop that has the plan's microbatches, with their weights."""
    task, each = replace(kind.task, weight=kind.weight), dict[str, set[int]]()
    for op in plan.programs[0].round:
        name = op.name
        if name.item == "s" and name.kind in "BW":
            each.setdefault(op.stream, set()).add(name.index)
    first = set(map(frozenset, each.values()))
    assert callable(task.model)
    names = [name for name, _ in task.model().named_parameters()]
    shares: dict[str, Sequence[Share]] | None = None
    if len(first) > 1:  # replicas, the gradients of the second are added to those of the first
        parts = [sorted(own) for own in sorted(first, key=min)]
        shares = dict.fromkeys(names, parts)
    return train(task, plan.tasks[0].microbatches, shares=shares)


def off(result: Result, plain: Plain, name: str) -> float:
    """The largest difference of losses, relative."""
    pairs = zip(result.losses[name], plain.losses, strict=True)
    return max(abs(mine - other) / abs(other) for mine, other in pairs)


def profiled(kind: Kind, sizes: Sequence[int] = SIZES) -> Profile:
    """In microbatches of these sizes."""
    with mock.patch.object(task_profiler, "microbatch_sizes", return_value=[*sizes]):
        return measured(kind.task, None)
