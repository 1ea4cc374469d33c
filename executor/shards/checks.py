"""Checks that the workload's task is the one that the plan, or a checkpoint, was made for.

Each raises MismatchError, with a line for everything that does not fit.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from torch import Tensor, bfloat16, float32, nn, uint8

from executor.errors import MismatchError, one_line
from executor.numerics import needs_norms, norm_bytes
from executor.shards.parameters import Parameters
from executor.workload import Task
from plans.schema import Task as PlanTask
from profiles.schema import Precision


def expect(where: str, pairs: Mapping[str, tuple[object, object]]) -> None:
    """MismatchError unless of everything the plan has what the workload has."""
    lines = [
        f"{where}: {what}: {planned} in the plan, {mine} in the workload; profile and build again"
        for what, (planned, mine) in pairs.items()
        if planned != mine
    ]
    if lines:
        raise MismatchError(*lines)


def expect_shard(plan: PlanTask, index: int, mine: Parameters) -> None:
    """The shard of this number has as many bytes of parameters and of gradients, and if it casts,
    a master of every parameter."""
    planned = plan.shards[index]
    learn = len(mine.trainable)
    pairs = {
        "bytes of parameters": (planned.param_bytes, mine.views.bytes),
        "bytes of the base": (planned.base_bytes, mine.base_views.bytes),
        "bytes of gradients": (planned.grad_bytes, mine.grad_views.bytes),
        "trained parameters": (len(mine.all) if planned.cast else learn, learn),
    }
    expect(f"shard {plan.name}.s{index}", pairs)


def expect_task(plan: PlanTask, task: Task, trainable: int) -> None:
    """It computes in the same precision, as many parameters (`trainable`) have norms, and it is
    evaluated as often, on as many batches."""
    norms = norm_bytes(trainable) if needs_norms(task.precision, task.clip) else 0
    planned, mine = (
        "none"
        if e is None
        else f"after every {e.every} steps"
        if plan.lengths  # whose batches are the plan's
        else f"{e.batches} batches after every {e.every} steps"
        for e in (plan.evaluation, task.evaluate)
    )
    pairs = {
        "precision": (plan.precision, task.precision),
        "bytes of gradient norms": (plan.norm_bytes, norms),
        "evaluation": (planned, mine),
    }
    expect(f"task {plan.name}", pairs)


@dataclass(frozen=True)
class Saved:
    """A task's state in a checkpoint: its model's state dict, optimizer state by parameter name,
    the random numbers' state before its next step, an fp16 task's loss scale, the settings of its
    optimizers as executor/optim/settings.py has them, and how many samples its data has.

    base: the `base_of` the model, whose frozen parameters are then left out; None where all are in
    the state dict."""

    model: Mapping[str, Any]
    optimizer: Mapping[str, Mapping[str, Any]]
    rng: Tensor
    loss_scale: Mapping[str, Tensor] | None
    settings: Sequence[Mapping[str, Any]] = ()
    samples: int | None = None
    base: str | None = None


def expect_samples(plan: PlanTask, saved: Saved, own: int | None) -> None:
    """MismatchError for a dataset with another length than it had: the order goes by that."""
    if saved.samples and own and own != saved.samples:
        text = f"its dataset has {own} samples, and had {saved.samples} up to step {plan.done}, by "
        text += "which their order goes; give the one that it began with, or train from the begin "
        raise misfit(plan, [text + "with --overwrite"])


def frozen_in(model: nn.Module) -> dict[str, Tensor]:
    """Parameters that no training changes, by all of their names."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: p.detach() for name, p in named if not p.requires_grad}


def base_of(model: nn.Module, precision: Precision) -> str | None:
    """A sha256 of the frozen parameters of a model, as it computes with them; None without any.
    Their names, which adapters change, have no part in it."""

    def digest(value: Tensor) -> str:
        if precision == "bf16" and value.is_floating_point():
            value = value.to(bfloat16)
        bits = sha256(value.contiguous().flatten().view(uint8).numpy().data)
        return f"{value.dtype} {tuple(value.shape)} {bits.hexdigest()}"

    if not (frozen := frozen_in(model)):
        return None
    with ThreadPoolExecutor() as pool:  # 0.7 GB/s each
        return sha256(repr(list(pool.map(digest, frozen.values()))).encode()).hexdigest()


def load(
    plan: PlanTask, saved: Saved, model: nn.Module, base: str | None, rng_state: Tensor
) -> None:
    """Load the saved model. MismatchError for a checkpoint of another model, base, kind of device
    or precision."""
    if saved.base and saved.base != base:
        raise misfit(plan, [_another_base(saved.base, base)])
    lines = []
    try:
        model.load_state_dict((frozen_in(model) if saved.base else {}) | dict(saved.model))
    except (RuntimeError, KeyError, TypeError) as error:  # a headline, and a line for each tensor
        told = str(error).splitlines()[1:] or [one_line(error)]
        lines += [f"the checkpoint is of another model: {line.strip()}" for line in told]
    lines += _misfits(model, saved.optimizer)
    mine, theirs = rng_state.numel(), saved.rng.numel() if isinstance(saved.rng, Tensor) else 0
    if mine != theirs:
        lines.append(
            f"the checkpoint has {theirs} bytes of random state, a device of "
            f"this plan's kind {mine}; a task goes on on the kind of device where it began"
        )
    if (plan.precision == "fp16-autocast") != bool(saved.loss_scale):
        lines.append(
            f"is {plan.precision} in the plan, and the checkpoint has "
            f"{'a' if saved.loss_scale else 'no'} loss scale; go on in the precision it began with"
        )
    if lines:
        raise misfit(plan, lines)


def _another_base(saved: str, mine: str | None) -> str:
    return (
        f"the parameters that it does not train have sha256 {saved[:12]}… in the checkpoint, "
        f"{mine[:12] + '…' if mine else 'none'} when model() is done; give it the base that it "
        "began with, or train from the begin with --overwrite"
    )


def _misfits(model: nn.Module, saved: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each optimizer state of no parameter, and for each master of another kind."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, state in saved.items():
        if name not in shapes:
            yield f"the checkpoint has optimizer state of {name}, the model no such parameter"
        elif "master" in state:
            one = state["master"]
            if not isinstance(one, Tensor) or (one.dtype, one.shape) != (float32, shapes[name]):
                yield f"the master of {name} is no float32 tensor of {list(shapes[name])}"


def misfit(plan: PlanTask, lines: Iterable[str]) -> MismatchError:
    """The error with these lines about a task."""
    return MismatchError(*(f"task {plan.name}: {line}" for line in lines))


def dtype_mismatches(mine: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """A line for each tensor of a model that a checkpoint has in another dtype."""
    return [
        f"{name} is {theirs.dtype} in the checkpoint, {value.dtype} in the plan; go on in the "
        "precision it began with"
        for name, value in mine.items()
        if isinstance(value, Tensor) and (theirs := saved.get(name, value)).dtype != value.dtype
    ]
