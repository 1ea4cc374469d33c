"""One shard's optimizer, with its state in flat memory that moves between host and device."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from executor.errors import RunError
from executor.flat import Views, flat_bytes, spec_of

Factory = Callable[[list[nn.Parameter]], Optimizer]


class StateError(RunError):
    """The optimizer keeps another amount of state than the plan has room for."""


class ShardOptimizer:
    """A torch optimizer over one shard's parameters.

    Its state is adopted after the first step: every floating tensor of its parameter's shape is
    moved into a flat, in parameter order and then in the order of its keys. Whatever else there
    is, such as a step counter, stays where torch keeps it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], factory: Factory) -> None:
        self.parameters = list(parameters)
        self.optimizer = factory(self.parameters)
        self._slots: list[tuple[nn.Parameter, str]] | None = None
        self._views = Views([])

    @property
    def state_bytes(self) -> int:
        """Bytes of the state's flat; 0 before the first step."""
        return self._views.bytes

    def step(self, state_flat: Tensor | None) -> None:
        """One optimizer step on the bound parameters and gradients, state in `state_flat`."""
        if self._slots is None:
            self.optimizer.step()
            self._adopt(state_flat)
            return
        self.bind(state_flat)
        self.optimizer.step()
        self._return_strays(state_flat)

    def bind(self, state_flat: Tensor | None) -> None:
        """Point the adopted state at `state_flat`, whose bytes are already there."""
        if self._slots and state_flat is not None:
            for (parameter, key), view in zip(self._slots, self._views.at(state_flat), strict=True):
                self.optimizer.state[parameter][key] = view

    def _adopt(self, state_flat: Tensor | None) -> None:
        self._slots = [
            (parameter, key)
            for parameter in self.parameters
            for key, value in self.optimizer.state[parameter].items()
            if _moves(value, parameter)
        ]
        specs = [spec_of(self.optimizer.state[p][key]) for p, key in self._slots]
        room = 0 if state_flat is None else state_flat.numel()
        if flat_bytes(specs) > room:
            raise StateError(
                f"the optimizer keeps {flat_bytes(specs)} bytes of state, the plan has {room}; "
                "profile and build again"
            )
        self._views = Views(specs)
        self._return_strays(state_flat)

    def _return_strays(self, state_flat: Tensor | None) -> None:
        """Copy state that the optimizer made anew into the flat, and keep it there."""
        if not self._slots or state_flat is None:
            return
        for (parameter, key), view in zip(self._slots, self._views.at(state_flat), strict=True):
            value = self.optimizer.state[parameter][key]
            if value is not view:
                view.copy_(value)
                self.optimizer.state[parameter][key] = view


def _moves(value: object, parameter: nn.Parameter) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.shape == parameter.shape
    )
