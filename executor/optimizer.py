"""One shard's optimizer, with its state in flat memory that moves between host and device."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from executor.errors import RunError
from executor.flat import Spec, Views, spec_of, view
from profiles.codec import align

Factory = Callable[[list[nn.Parameter]], Optimizer]


class StateError(RunError):
    """The optimizer keeps another amount of state than the plan has room for."""


class ShardOptimizer:
    """A torch optimizer over one shard's parameters.

    Its state is adopted in the first step: every floating tensor of its parameter's shape is
    moved into a flat, in parameter order and then in the order of its keys. Whatever else there
    is, such as a step counter, stays where torch keeps it.

    `piecewise`: the first step goes parameter by parameter, so that no more than one parameter's
    state is ever outside of the flat. Torch's own optimizers allow it, unless they make their
    state beforehand; of others it is not known whether they count their steps.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], factory: Factory) -> None:
        self.parameters = list(parameters)
        self.optimizer = factory(self.parameters)
        self.piecewise = (
            type(self.optimizer).__module__.startswith("torch.optim.") and not self.optimizer.state
        )
        self._slots: list[tuple[nn.Parameter, str]] | None = None
        self._views = Views([])

    @property
    def state_bytes(self) -> int:
        """Bytes of the state's flat; 0 before the first step."""
        return self._views.bytes

    def step(self, state_flat: Tensor | None) -> None:
        """One optimizer step on the bound parameters and gradients, state in `state_flat`."""
        if self._slots is None:
            self._first_step(torch.empty(0) if state_flat is None else state_flat)
            return
        self.bind(state_flat)
        self.optimizer.step()
        self._return_strays(state_flat)

    def bind(self, state_flat: Tensor | None) -> None:
        """Point the adopted state at `state_flat`, whose bytes are already there."""
        if self._slots and state_flat is not None:
            for (parameter, key), home in zip(self._slots, self._views.at(state_flat), strict=True):
                self.optimizer.state[parameter][key] = home

    def _first_step(self, flat: Tensor) -> None:
        """Step and move the new state into `flat`; StateError when it has no room for it."""
        self._slots, used = [], 0
        specs: list[Spec] = []
        for parameters in self._portions():
            self.optimizer.step()
            for parameter, key in self._made(parameters):
                specs.append(self._adopt(parameter, key, flat[used:]))
                self._slots.append((parameter, key))
                used += align(specs[-1].bytes)
        if used > flat.numel():
            raise StateError(
                f"the optimizer keeps {used} bytes of state, the plan has {flat.numel()}; "
                "profile and build again"
            )
        self._views = Views(specs)

    def _adopt(self, parameter: nn.Parameter, key: str, room: Tensor) -> Spec:
        """Move one tensor of the state to the beginning of `room`, if it fits."""
        value = self.optimizer.state[parameter][key]
        spec = spec_of(value)
        if spec.bytes <= room.numel():
            self.optimizer.state[parameter][key] = view(room, spec).copy_(value)
        return spec

    def _portions(self) -> Iterator[list[nn.Parameter]]:
        """All parameters at once, or each in turn while the others have no gradient."""
        if not self.piecewise:
            yield self.parameters
            return
        grads = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
            yield [parameter]
            parameter.grad = None
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad

    def _made(self, parameters: Sequence[nn.Parameter]) -> list[tuple[nn.Parameter, str]]:
        """The state of these parameters that moves."""
        return [
            (parameter, key)
            for parameter in parameters
            for key, value in self.optimizer.state[parameter].items()
            if _moves(value, parameter)
        ]

    def _return_strays(self, state_flat: Tensor | None) -> None:
        """Copy state that the optimizer made anew into the flat, and keep it there."""
        if not self._slots or state_flat is None:
            return
        for (parameter, key), home in zip(self._slots, self._views.at(state_flat), strict=True):
            value = self.optimizer.state[parameter][key]
            if value is not home:
                home.copy_(value)
                self.optimizer.state[parameter][key] = home


def _moves(value: object, parameter: nn.Parameter) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.shape == parameter.shape
    )
