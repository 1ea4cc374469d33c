"""Which module it is that tells a part of a batch from the whole."""

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from executor.numerics import SameDraws, tensors_of
from executor.profiling.parts.comparing import near, pieces_of
from executor.profiling.parts.probe import Probe
from executor.workload import Batch

Seen = dict[tuple[str, int], tuple[list[Tensor], list[Tensor]]]  # what calls take and give


def culprit(probe: Probe, batch: Batch, cut: Sequence[int]) -> str:
    """The module that gives samples something else when it has them alone: the first whose inputs
    are the same and whose outputs are not. "loss" where there is none."""
    draws, names = SameDraws(sum(cut), probe.source), dict(probe.model.named_modules())
    with probe.alone(), torch.no_grad(), draws:
        whole = _seen(probe, batch)
    with probe.alone(), torch.no_grad(), draws:
        parts = list[Seen]()
        for begin, piece in pieces_of(batch, cut):
            draws.take(begin, piece.size)
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
        if any(one.dim() != tensor.dim() for one in own):
            return None
        sizes = [enumerate(zip(one.shape, tensor.shape, strict=True)) for one in own]
        unlike = {dim for pairs in sizes for dim, (size, most) in pairs if size != most}
        joined = [torch.cat(own, *unlike)] if len(unlike) == 1 else own
        if joined[0].shape != tensor.shape:
            return None
        if not all(near(tensor, one) for one in joined):
            return False
    return True
