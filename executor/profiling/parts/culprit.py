"""Which module it is that tells a part of a batch from the whole."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from executor.numerics import SameDraws, tensors_of
from executor.profiling.parts.comparing import near, pieces_of, samples_of
from executor.profiling.parts.probe import Probe
from executor.workload import Batch

Seen = dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]]  # what calls take and give


def culprit(probe: Probe, batch: Batch, cut: Sequence[int]) -> str:
    """The module that gives samples something else when it has them alone: the first whose inputs
    are the same and whose outputs are not. "loss" where there is none."""
    draws, names = SameDraws(sum(cut)), dict(probe.model.named_modules())
    with probe.alone(), torch.no_grad(), draws:
        whole = _seen(probe, batch)
    with probe.alone(), torch.no_grad(), draws:
        parts = list[Seen]()
        for begin, piece in pieces_of(batch, cut):
            draws.take(begin, samples_of(piece))
            parts.append(_seen(probe, piece))
    for key, (taken, given) in whole.items():
        own = [seen[key] for seen in parts if key in seen]
        if len(own) < len(cut) or not _rows(taken, [took for took, _ in own]):
            continue
        if _rows(given, [gave for _, gave in own]) is False:
            return f"{type(names[key[0]]).__name__} {key[0]}".strip()
    return "loss"


def _seen(probe: Probe, batch: Batch) -> Seen:
    """The calls of modules in a forward, in the order in which they end."""
    found, handles = Seen(), []

    def note(name: str, module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        number = next(n for n in count() if (name, n) not in found)
        values = tensors_of((args, kwargs)), tensors_of(made)
        found[name, number] = [t.clone() for t in values[0]], [t.clone() for t in values[1]]

    for name, module in probe.model.named_modules():
        handles.append(module.register_forward_hook(partial(note, name), with_kwargs=True))
    try:
        probe.loss(batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _rows(whole: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]) -> bool | None:
    """True if these values of the parts, one behind the other, are those of the whole; None where
    they do not lie so."""
    if any(len(own) != len(whole) for own in parts):
        return None
    for tensor, *own in zip(whole, *parts, strict=True):
        if not tensor.is_floating_point():
            continue
        if all(one.shape == tensor.shape for one in own):
            joined = [tensor] * len(own), own
        else:
            made = (torch.cat(own, dim) for dim in _growing(tensor, own))
            joined = [tensor], [one for one in made if one.shape == tensor.shape][:1]
        if len(joined[0]) != len(joined[1]):
            return None
        if not all(near(a, b) for a, b in zip(*joined, strict=True)):
            return False
    return True


def _growing(whole: Tensor, own: Sequence[Tensor]) -> list[int]:
    """The dimension in which the parts are smaller than the whole, if it is the only one."""
    if any(one.dim() != whole.dim() for one in own):
        return []
    dims = [d for d in range(whole.dim()) if any(one.shape[d] != whole.shape[d] for one in own)]
    return dims if len(dims) == 1 else []
