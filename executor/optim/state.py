"""The state an optimizer keeps of its parameters, as far as it lies in flat memory.

Adopted are tensors that have a dimension, whatever their dtype and shape: in parameter order as
the parameters are stepped first, and then in the order of the keys. What is made in a later step
is adopted where there is room. Numbers and step counters stay where torch keeps them.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from executor.numerics import Spec, Views, spec_of
from profiles.codec import align


class Adopted:
    """The slots of a flat (uint8), which may lie elsewhere at each call.

    A slot is of one parameter and key for good. It is vacant while the optimizer has no such state
    or has it in another form.

    bytes: of all slots, and of state that should have one and found no room.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.bytes = 0
        self._optimizer = optimizer
        self._slots: dict[tuple[nn.Parameter, str], None] = {}
        self._views = Views()
        self._bound: list[Tensor] = []  # by slot: its place when it was bound last

    def slots(self) -> list[tuple[nn.Parameter, str, Spec]]:
        """The slots, in their order."""
        return [(*key, spec) for key, spec in zip(self._slots, self._views.specs, strict=True)]

    def at(self, parameter: nn.Parameter, key: str) -> bool:
        """True if that state lies in its slot."""
        places = dict(zip(self._slots, self._bound, strict=True))
        return self._of(parameter).get(key) is places.get((parameter, key), self)

    def take_over(
        self, slots: Iterable[tuple[nn.Parameter, str, Spec]], flat: Tensor, count: int
    ) -> dict[tuple[nn.Parameter, str], Tensor]:
        """Have these slots in `flat`, as another one that keeps `count` bytes; their places."""
        for parameter, key, spec in slots:
            self._slots[parameter, key] = None
            self._views.add(spec)
        self._bound, self.bytes = self._views.at(flat), count
        return dict(zip(self._slots, self._bound, strict=True))

    def bind(self, flat: Tensor) -> None:
        """Point the state at `flat`, whose bytes are already there."""
        homes = self._views.at(flat)
        for (parameter, key), was, home in zip(self._slots, self._bound, homes, strict=True):
            kept = self._of(parameter)
            if kept.get(key) is was:
                kept[key] = home
        self._bound = homes

    def bind_others(self) -> None:
        """Fused steps count where their parameters are, all others on the host; whatever else
        lies beside the flat follows the parameter, but for numbers on the host."""
        for group in self._optimizer.param_groups:
            near = group.get("fused") or group.get("capturable")
            for parameter in group["params"]:
                kept = self._of(parameter)
                for key, value in kept.items():
                    if key == "step" and isinstance(value, Tensor) and not value.dim():
                        kept[key] = value.to(parameter.device if near else "cpu")
                    else:
                        kept[key] = _beside(value, where=parameter.device)

    def take(self, parameter: nn.Parameter, flat: Tensor, *, spare: bool) -> None:
        """Move the parameter's state that has no slot into `flat`, behind all other. What has no
        room there stays beside, and is counted unless it is `spare`."""
        kept = self._of(parameter)
        for key, value in kept.items():
            if (parameter, key) in self._slots or not _moves(key, value, parameter):
                continue
            spec = spec_of(value)
            room = self.bytes + spec.bytes <= flat.numel()
            if room:
                self._slots[parameter, key] = None
                self._views.add(spec)
                self._bound = self._views.at(flat)
                kept[key] = self._bound[-1].copy_(value)
            if room or not spare:
                self.bytes += align(spec.bytes)

    def return_strays(self, flat: Tensor) -> None:
        """Copy state that the optimizer made anew, in the form that it had, to its place in
        `flat`, and keep it there."""
        homes = zip(self._slots, self._views.specs, self._views.at(flat), strict=True)
        for (parameter, key), spec, home in homes:
            kept = self._of(parameter)
            value: Any = kept.get(key)
            if value is not home and _moves(key, value, parameter) and spec_of(value) == spec:
                kept[key] = home.copy_(value)

    def _of(self, parameter: nn.Parameter) -> dict[str, Any]:
        """The optimizer's state of a parameter."""
        kept: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return kept


def _moves(key: str, value: Any, parameter: nn.Parameter) -> bool:
    """True if state has its place in the flat: a tensor that has a dimension, or none where its
    parameter has none, but for the counter of steps."""
    if type(value) is not Tensor or value.layout != torch.strided or value.is_quantized:
        return False
    if value.dim() == 0 and (key == "step" or parameter.dim() or not value.is_floating_point()):
        return False
    return value.numel() > 0 and not (value.requires_grad or value.is_conj() or value.is_neg())


def _beside(value: Any, where: torch.device) -> Any:
    """The tensors in a value that stays beside the flat, on a device; numbers stay on the host."""
    if isinstance(value, Tensor):
        return value.to(where) if value.dim() or value.device.type != "cpu" else value
    if type(value) in (list, tuple, dict):
        return tree_map(partial(_beside, where=where), value)
    return value
