"""Optimizer steps on fp32 masters of bf16 parameters.

Torch's fused optimizers want one dtype, so with bf16 parameters the casts around a step cost more
than the step. On the host, torch's own kernels of Adam and AdamW are therefore called block by
block, so that what is cast is still in the caches. That gives the bits of `plain_step`: the kernels
treat a tensor in whole vectors, of which a block has a whole number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer
from torch.optim import optimizer as torch_optimizer

BLOCK = 1 << 18  # elements
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Stepped(NamedTuple):
    """The tensors of a step: `masters` are parameters of the optimizer; the i-th of each list
    belong together and have one shape. params None: masters alone are kept."""

    optimizer: Optimizer
    masters: Sequence[Tensor]
    params: Sequence[Tensor] | None
    grads: Sequence[Tensor]


def step_masters(given: Stepped, scale: float | Tensor) -> None:
    """Step the masters with the gradients cast to fp32 and multiplied by `scale`, and copy them to
    the parameters. Gradients of the masters are None before and after."""
    go = block_step if fits_blocks(given) else plain_step
    go(given, scale)


def plain_step(given: Stepped, scale: float | Tensor) -> None:
    """The same for any optimizer: two casts around its own step."""
    optimizer, masters, params, grads = given
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


@torch.no_grad()
def block_step(given: Stepped, scale: float | Tensor) -> None:
    """The same block by block, where `fits_blocks`."""
    optimizer, masters, params, grads = given
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    whole = not isinstance(scale, Tensor) and scale == 1.0
    most = min(BLOCK, max((master.numel() for master in masters), default=0))
    wide = torch.empty(most, dtype=torch.float32, device="cpu")
    for place, (master, grad) in enumerate(zip(masters, grads, strict=True)):
        group, state = groups[master], optimizer.state[master]
        if not state:  # made as torch makes it
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state |= {name: torch.zeros_like(master) for name in _MOMENTS}
        state["step"] += 1
        decoupled = group.get("decoupled_weight_decay", type(optimizer) is AdamW)
        update = torch._fused_adamw_ if decoupled else torch._fused_adam_
        param = master if params is None else params[place]
        every = (grad, master, *(state[name] for name in _MOMENTS), param)
        for low, own, first, second, kept in zip(
            *(tensor.view(-1).split(BLOCK) for tensor in every), strict=True
        ):
            high = wide[: len(low)].copy_(low)
            if not whole:
                high.mul_(scale)
            update(
                [own],
                [high],
                [first],
                [second],
                [],
                [state["step"]],
                lr=float(group["lr"]),
                beta1=float(group["betas"][0]),
                beta2=float(group["betas"][1]),
                weight_decay=float(group["weight_decay"]),
                eps=float(group["eps"]),
                amsgrad=False,
                maximize=False,
            )
            if params is not None:
                kept.copy_(own)
    optimizer._opt_called = True  # type: ignore[attr-defined]  # as a scheduler wants to know


def fits_blocks(given: Stepped) -> bool:
    """True for torch's own AdamW and Adam with `fused=True` (other settings round differently),
    whose step nobody watches, without amsgrad or maximize, on contiguous CPU tensors."""
    optimizer, masters, params, grads = given
    low = (*(params or ()), *grads)
    wide = [*masters]
    for master in masters:
        state = optimizer.state.get(master, {})
        wide += [state[name] for name in _MOMENTS if name in state]
    return (
        type(optimizer) in (Adam, AdamW)
        and not _watched(optimizer)
        and all(
            group.get("fused") and not (group["amsgrad"] or group["maximize"])
            for group in optimizer.param_groups
        )
        and all(x.dtype is torch.float32 for x in wide)
        and all(x.dtype is torch.bfloat16 for x in low)
        and all(x.device.type == "cpu" and x.is_contiguous() for x in (*wide, *low))
    )


def _watched(optimizer: Optimizer) -> bool:
    """True if somebody would miss the call of `optimizer.step`, or changes what it does. The step
    that a scheduler puts in its place only notes that it was called."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    own = vars(optimizer).get("step")
    noting = getattr(own, "_wrapped_by_lr_sched", False)
    inside = getattr(own, "__wrapped__", None)
    replaced = own is not None and not (noting and inside is type(optimizer).step)
    return any(hooks) or replaced
