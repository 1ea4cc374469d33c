"""Host optimizer steps on bf16 parameters with fp32 masters, in one pass over memory.

Torch's fused optimizers want one dtype, so with bf16 parameters the casts around a step cost more
than the step. `step` does gradient cast, update and parameter cast at once, in compiled code;
`plain_step` does the same with torch alone. Both give the same bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from executor.optim import kernels
from executor.optim.kernels import Kernels

_MOMENTS = ("exp_avg", "exp_avg_sq")
_UNSUPPORTED = ("amsgrad", "maximize", "differentiable", "capturable", "foreach")


class _Work(NamedTuple):
    """One parameter's update."""

    group: dict[str, Any]
    master: Tensor
    param: Tensor | None  # None: only the master is kept
    grad: Tensor


def available() -> bool:
    """True if there are compiled kernels for `step`; makes them if that was not tried before."""
    return not why_not()


def why_not() -> str:
    """The reason for which there are no kernels, in one line; empty when there are some."""
    found = kernels.find()
    return found if isinstance(found, str) else ""


def step(
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
    scale: float,
) -> bool:
    """`plain_step` in one pass, where that is possible; else False, and nothing is touched.

    It is for torch's own AdamW and Adam with `fused=True` (other settings round differently),
    without hooks, amsgrad or maximize, on contiguous CPU tensors: `masters` and state in fp32,
    `params`, if they are kept, and `grads` in bf16. Uses as many threads as torch would in the
    calling thread.
    """
    work = _plan(optimizer, masters, params, grads)
    found = kernels.find() if work is not None else ""
    if work is None or isinstance(found, str) or type(optimizer) not in found.roundings:
        return False
    _run(found, optimizer, work, scale)
    optimizer._opt_called = True  # type: ignore[attr-defined]  # as a scheduler wants to know
    return True


def plain_step(
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
    scale: float | Tensor,
) -> None:
    """Step `masters` with `grads` cast to fp32 and multiplied by `scale`, and copy to `params`, if
    they are kept.

    `masters` are parameters of `optimizer`; the i-th of each list belong together and have one
    shape. Gradients of the masters are None afterwards.
    """
    try:
        for master, grad in zip(masters, grads, strict=True):
            whole = not isinstance(scale, Tensor) and scale == 1.0
            master.grad = grad.float() if whole else grad.float() * scale
        optimizer.step()
    finally:
        for master in masters:
            master.grad = None
    with torch.no_grad():
        for master, param in zip(masters, params, strict=True) if params is not None else ():
            param.copy_(master)


def _plan(
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
) -> list[_Work] | None:
    """The updates, in the order of `masters`; None when torch has to do them. Reads only."""
    if type(optimizer) not in kernels.KINDS or _watched(optimizer):
        return None
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    stepped = set(masters)
    others = [p for p in groups if p not in stepped and p.grad is not None]
    if others or len(stepped) < len(masters) or not stepped <= groups.keys():
        return None
    if not all(_supported(group) for group in optimizer.param_groups):
        return None
    targets = [None] * len(masters) if params is None else params
    work = [
        _Work(groups[master], master, param, grad)
        for master, param, grad in zip(masters, targets, grads, strict=True)
    ]
    return work if all(_fits(one, optimizer.state.get(one.master)) for one in work) else None


def _watched(optimizer: Optimizer) -> bool:
    """True if somebody would miss the call of `optimizer.step`, or changes what it does."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    scaler = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
    return any(hooks) or _replaced(optimizer) or any(value is not None for value in scaler)


def _replaced(optimizer: Optimizer) -> bool:
    """True if the optimizer has a `step` of its own: schedulers give it one that only notes that
    it was called."""
    own = vars(optimizer).get("step")
    noting = getattr(own, "_wrapped_by_lr_sched", False)
    inside = getattr(own, "__wrapped__", None)
    return own is not None and not (noting and inside is type(optimizer).step)


def _supported(group: dict[str, Any]) -> bool:
    numbers = [group["lr"], group["weight_decay"], group["eps"], *group["betas"]]
    return (
        group.get("fused") is True
        and not any(group.get(name) for name in _UNSUPPORTED)
        and all(_is_number(value) for value in numbers)
    )


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.device.type == "cpu" and value.numel() == 1
    return isinstance(value, int | float)


def _fits(work: _Work, state: dict[str, Any] | None) -> bool:
    """True for tensors, and state if there is any, as the kernels want them."""
    shape = work.master.shape
    wanted: list[tuple[Any, torch.dtype, torch.Size]] = [
        (work.master, torch.float32, shape),
        (work.grad, torch.bfloat16, shape),
    ]
    if work.param is not None:
        wanted.append((work.param, torch.bfloat16, shape))
    if state:
        wanted.append((state.get("step"), torch.float32, torch.Size()))
        wanted += [(state.get(name), torch.float32, shape) for name in _MOMENTS]
    return all(_dense(*one) for one in wanted)


def _dense(value: object, dtype: torch.dtype, shape: torch.Size) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype is dtype
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.shape == shape
        and value.is_contiguous()
    )


@torch.no_grad()
def _run(found: Kernels, optimizer: Optimizer, work: list[_Work], scale: float) -> None:
    for group, master, param, grad in work:
        state = optimizer.state[master]
        if not state:  # made as torch makes it
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            for name in _MOMENTS:
                state[name] = torch.zeros_like(master, memory_format=torch.preserve_format)
        state["step"] += 1
        moments = [state[name] for name in _MOMENTS]
        found.update(
            type(optimizer), group, float(state["step"]), grad, master, moments, param, scale
        )
    # They were written past autograd, which has to know of it.
    written = [t for one in work for t in (one.master, one.param) if t is not None]
    torch.autograd.graph.increment_version(written)
