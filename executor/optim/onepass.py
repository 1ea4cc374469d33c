"""Host optimizer steps on bf16 parameters with fp32 masters, in one pass over memory.

Torch's fused optimizers want one dtype, so with bf16 parameters the casts around a step cost more
than the step. `step` does gradient cast, update and parameter cast at once, in compiled code, where
that is possible; `plain_step` does the same with torch alone. Both give the same bits.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from executor.optim import kernels
from executor.optim.kernels import Kernels

_MOMENTS = ("exp_avg", "exp_avg_sq")


def why_not() -> str:
    """The reason for which there are no compiled kernels, in one line; empty when there are some.
    Makes them if that was not tried before."""
    found = kernels.find()
    return found if isinstance(found, str) else ""


def step(
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
    scale: float | Tensor,
) -> None:
    """Step `masters` with `grads` cast to fp32 and multiplied by `scale`, and copy to `params`, if
    they are kept.

    `masters` are parameters of `optimizer`; the i-th of each list belong together and have one
    shape. Gradients of the masters are None before and after. Uses as many threads as torch would
    in the calling thread.
    """
    fits = isinstance(scale, float) and fits_kernels(optimizer, masters, params, grads)
    found = kernels.find() if fits else ""
    if isinstance(found, Kernels) and type(optimizer) in found.roundings:
        _step(found, optimizer, masters, params, grads, float(scale))
    else:
        plain_step(optimizer, masters, params, grads, scale)


def plain_step(
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
    scale: float | Tensor,
) -> None:
    """The same for any optimizer: two casts around its own step."""
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


def fits_kernels(
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
) -> bool:
    """True for torch's own AdamW and Adam with `fused=True` (other settings round differently),
    whose step nobody watches, without amsgrad or maximize, on contiguous CPU tensors."""
    low = (*(params or ()), *grads)
    wide = [*masters]
    for master in masters:
        state = optimizer.state.get(master, {})
        wide += [state[name] for name in _MOMENTS if name in state]
    return (
        type(optimizer) in kernels.KINDS
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


@torch.no_grad()
def _step(
    found: Kernels,
    optimizer: Optimizer,
    masters: Sequence[Tensor],
    params: Sequence[Tensor] | None,
    grads: Sequence[Tensor],
    scale: float,
) -> None:
    groups = {p: group for group in optimizer.param_groups for p in group["params"]}
    for place, (master, grad) in enumerate(zip(masters, grads, strict=True)):
        param, state = params[place] if params is not None else None, optimizer.state[master]
        if not state:  # made as torch makes it
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state |= {name: torch.zeros_like(master) for name in _MOMENTS}
        state["step"] += 1
        moments = [state[name] for name in _MOMENTS]
        count, kind = float(state["step"]), type(optimizer)
        found.update(kind, groups[master], count, grad, master, moments, param, scale)
    # They were written past autograd, which has to know of it.
    torch.autograd.graph.increment_version([*masters, *(params or ())])
    optimizer._opt_called = True  # type: ignore[attr-defined]  # as a scheduler wants to know
