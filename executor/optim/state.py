"""The state an optimizer keeps of its parameters, as far as it lies in flat memory.

Adopted are tensors that have a dimension, whatever their dtype and shape: in parameter order as
the parameters are stepped first, and then in the order of the keys. What is made in a later step
is adopted where there is room. Numbers and step counters stay where torch keeps them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from executor.numerics import Views, spec_of, view
from profiles.codec import align

_NUMBER = float | int | None


class Adopted:
    """The slots of a flat (uint8), which may lie elsewhere at each call.

    A slot is of one parameter and key for good. It is vacant while the optimizer has no such state
    or has it in another form.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._slots: list[tuple[nn.Parameter, str]] = []
        self._known: set[tuple[int, str]] = set()  # parameters by id, and keys, that have slots
        self._vacant: set[int] = set()
        self._views = Views([])

    @property
    def bytes(self) -> int:
        """The bytes of all slots."""
        return self._views.bytes

    def bind(self, flat: Tensor) -> None:
        """Point the state at `flat`, whose bytes are already there."""
        for number, (parameter, key), home in self._homes(flat):
            if number not in self._vacant:
                self._optimizer.state[parameter][key] = home

    def bind_others(self) -> None:
        """Fused steps count where their parameters are, all others on the host; whatever else
        lies beside the flat follows the parameter, but for numbers on the host."""
        near = {
            id(parameter): bool(group.get("fused") or group.get("capturable"))
            for group in self._optimizer.param_groups
            for parameter in group["params"]
        }
        state: dict[Any, Any] = self._optimizer.state
        own = [(key, kept) for key, kept in state.items() if isinstance(key, Tensor)]
        for parameter, kept in own:
            for key, value in kept.items():
                if key == "step" and isinstance(value, Tensor) and not value.dim():
                    where = parameter.device if near.get(id(parameter)) else torch.device("cpu")
                    if value.device != where:
                        kept[key] = value.to(where)
                elif not isinstance(value, _NUMBER):
                    kept[key] = _beside(value, parameter.device)

    def take(self, parameter: nn.Parameter, flat: Tensor, *, spare: bool) -> None:
        """Move what is new of the parameter's state into `flat`, behind all other. What has no
        room there gets its slot all the same, but for `spare` state, which stays beside."""
        kept = self._optimizer.state.get(parameter, {})
        specs, used = list(self._views.specs), self._views.bytes
        for key in self._new(parameter):
            spec = spec_of(kept[key])
            room = used + spec.bytes <= flat.numel()
            if room:
                kept[key] = view(flat, spec, used).copy_(kept[key])
            if room or not spare:
                specs.append(spec)
                self._slots.append((parameter, key))
                self._known.add((id(parameter), key))
                used += align(spec.bytes)
        if len(specs) > len(self._views.specs):
            self._views = Views(specs)

    def take_late(self, parameters: Sequence[nn.Parameter], flat: Tensor) -> None:
        """Move what the optimizer has made after the first step, as far as there is room."""
        for parameter in parameters:
            if any(True for _ in self._new(parameter)):
                self.take(parameter, flat, spare=True)

    def return_strays(self, flat: Tensor) -> None:
        """Copy state that the optimizer made anew into `flat`, and keep it there; let go of what
        it has no more, or in another form."""
        for number, (parameter, key), home in self._homes(flat):
            kept = self._optimizer.state.get(parameter, {})
            value = kept.get(key)
            if value is home:
                continue
            if _moves(key, value, parameter) and spec_of(value) == self._views.specs[number]:
                kept[key] = home.copy_(value)
                self._vacant.discard(number)
            else:
                self._vacant.add(number)

    def _new(self, parameter: nn.Parameter) -> Iterator[str]:
        """The keys of the parameter's state that should have a slot and have none."""
        kept: dict[str, Any] = self._optimizer.state.get(parameter, {})
        for key, value in list(kept.items()):
            if (id(parameter), key) not in self._known and _moves(key, value, parameter):
                yield key

    def _homes(self, flat: Tensor) -> list[tuple[int, tuple[nn.Parameter, str], Tensor]]:
        """Each slot's number, its parameter and key, and its view of the flat."""
        homes = self._views.at(flat) if self._slots else []
        return list(zip(range(len(homes)), self._slots, homes, strict=True))


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

    def there(one: Any) -> Any:
        alone = isinstance(one, Tensor) and one.dim() == 0 and one.device.type == "cpu"
        if not isinstance(one, Tensor) or alone or one.device == where:
            return one
        return one.to(where)

    return tree_map(there, value) if type(value) in (list, tuple, dict) else there(value)
