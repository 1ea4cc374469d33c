"""One shard's optimizer, with its state in flat memory that moves between host and device.

With masters, the optimizer works on fp32 copies of bf16 parameters, which are part of its state:

    state flat   master 0 .. master n | what the optimizer keeps, parameter by parameter
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from executor import onepass
from executor.errors import RunError
from executor.flat import Spec, Views, spec_of, view
from profiles.codec import align

Factory = Callable[[list[nn.Parameter]], Optimizer]


class StateError(RunError):
    """The optimizer keeps another amount of state than the plan has room for."""


class Scaling(NamedTuple):
    """By what a step's gradients are multiplied first, and whether it is left out (one number)."""

    factor: Tensor
    left_out: Tensor | None


class ShardOptimizer:
    """A torch optimizer over one shard's parameters.

    Its state is adopted in the first step: every floating tensor of its parameter's shape is
    moved into a flat, in parameter order and then in the order of its keys. Whatever else there
    is, such as a step counter, stays where torch keeps it.

    `masters`: how fp32 copies of the trainable parameters lie at the beginning of the state.

    `piecewise`: the first step goes parameter by parameter, so that no more than one parameter's
    state is ever outside of the flat. Torch's own optimizers allow it, unless they make their
    state beforehand; of others it is not known whether they count their steps.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], factory: Factory, masters: Views | None = None
    ) -> None:
        self.parameters = list(parameters)
        self._trainable = [p for p in parameters if p.requires_grad]
        self._home = masters
        self._twins = [_twin(p) for p in self._trainable] if masters else self._trainable
        given = dict(zip(map(id, self._trainable), self._twins, strict=True))
        self._given = [given.get(id(p), p) for p in self.parameters]
        self.optimizer = factory(self._given)
        self.piecewise = (
            type(self.optimizer).__module__.startswith("torch.optim.") and not self.optimizer.state
        )
        self._slots: list[tuple[nn.Parameter, str]] | None = None
        self._views = Views([])

    @property
    def state_bytes(self) -> int:
        """Bytes of the state's flat; 0 before the first step."""
        return self._views.bytes + (self._home.bytes if self._home else 0)

    def state(self) -> dict[nn.Parameter, dict[str, Any]]:
        """Each parameter's state as the optimizer keeps it, with its `master` if it has one."""
        out: dict[nn.Parameter, dict[str, Any]] = {}
        for parameter, twin in zip(self.parameters, self._given, strict=True):
            master = {"master": twin.detach()} if twin is not parameter else {}
            out[parameter] = master | dict(self.optimizer.state[twin])
        return out

    def restore(self, saved: Sequence[Mapping[str, Any]], state_flat: Tensor) -> None:
        """Go on from the state of each parameter, as `state` gave it; its tensors move into
        `state_flat` as they would in a first step. StateError when it has no room for them."""
        self._bind_masters(state_flat)
        flat = self._after_masters(state_flat)
        given = zip(self._given, saved, strict=True)
        kept = [(parameter, dict(values)) for parameter, values in given if values]
        for parameter, values in kept:
            master = values.pop("master", None)
            if master is not None:
                parameter.detach().copy_(master)
            if values:
                self.optimizer.state[parameter] = values
        if not self.optimizer.state:
            return
        self._slots, used, specs = [], 0, []
        for parameter, values in kept:
            for key in [key for key, value in values.items() if _moves(value, parameter)]:
                specs.append(self._adopt(parameter, key, flat[used:]))
                self._slots.append((parameter, key))
                used += align(specs[-1].bytes)
        self._expect_room(used, flat)
        self._views = Views(specs)

    def step(self, state_flat: Tensor | None, scaling: Scaling | None = None) -> None:
        """One optimizer step on the bound parameters and gradients, state in `state_flat`."""
        left_out = None if scaling is None else scaling.left_out
        if left_out is not None and self._skips_itself():
            self.optimizer.found_inf = left_out.float()  # type: ignore[attr-defined]
        elif left_out is not None and bool(left_out):
            return
        try:
            self._step(state_flat, None if scaling is None else scaling.factor)
        finally:
            with suppress(AttributeError):
                del self.optimizer.found_inf  # type: ignore[attr-defined]

    def _skips_itself(self) -> bool:
        """Whether the step looks at `found_inf` itself, so that nobody waits for the device."""
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        return fused and self._home is None

    def _step(self, state_flat: Tensor | None, factor: Tensor | None) -> None:
        if self._slots is None:
            self._first_step(torch.empty(0) if state_flat is None else state_flat, factor)
            return
        self.bind(state_flat)
        self._go(self._trainable, factor)
        self._return_strays(state_flat)

    def _go(self, parameters: Sequence[nn.Parameter], factor: Tensor | None) -> None:
        """Step those of the parameters that have gradients; others must have none."""
        if self._home is not None:
            known = dict(zip(map(id, self._trainable), self._twins, strict=True))
            twins = [known[id(p)] for p in parameters]
            values = [p.data for p in parameters]
            grads = [p.grad for p in parameters if p.grad is not None]
            if factor is not None and factor.device.type != "cpu":  # nobody waits for its value
                onepass.plain_step(self.optimizer, twins, values, grads, factor)
                return
            scale = 1.0 if factor is None else float(factor)
            if not onepass.step(self.optimizer, twins, values, grads, scale):
                onepass.plain_step(self.optimizer, twins, values, grads, scale)
            return
        if factor is not None:
            grads = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        self.optimizer.step()

    def bind(self, state_flat: Tensor | None) -> None:
        """Point masters and the adopted state at `state_flat`, whose bytes are already there."""
        self._bind_masters(state_flat)
        if self._slots and state_flat is not None:
            homes = self._views.at(self._after_masters(state_flat))
            for (parameter, key), home in zip(self._slots, homes, strict=True):
                self.optimizer.state[parameter][key] = home
        self._bind_counters()

    def _bind_masters(self, state_flat: Tensor | None) -> None:
        if self._home is not None and state_flat is not None:
            for twin, value in zip(self._twins, self._home.at(state_flat), strict=True):
                twin.data = value

    def _bind_counters(self) -> None:
        """Fused steps count where their parameters are, all others on the host; whatever else the
        optimizer keeps in tensors of its own shapes follows the parameter."""
        adopted = {(id(parameter), key) for parameter, key in self._slots or ()}
        for parameter, kept in self.optimizer.state.items():
            for key, value in kept.items():
                moves = isinstance(value, Tensor) and value.dim() > 0
                if moves and (id(parameter), key) not in adopted:
                    kept[key] = value.to(parameter.device)
        for group in self.optimizer.param_groups:
            near = bool(group.get("fused") or group.get("capturable"))
            for parameter in group["params"]:
                kept = self.optimizer.state.get(parameter, {})
                count = kept.get("step")
                where = parameter.device if near else torch.device("cpu")
                if isinstance(count, Tensor) and count.device != where:
                    kept["step"] = count.to(where)

    def _after_masters(self, state_flat: Tensor) -> Tensor:
        return state_flat[self._home.bytes if self._home else 0 :]

    def _first_step(self, whole: Tensor, factor: Tensor | None) -> None:
        """Step and move the new state into the flat; StateError when it has no room for it."""
        self._bind_masters(whole)
        flat = self._after_masters(whole)
        self._slots, used = [], 0
        specs: list[Spec] = []
        for parameters in self._portions():
            self._go(parameters, factor)
            for parameter, key in self._made(parameters):
                specs.append(self._adopt(parameter, key, flat[used:]))
                self._slots.append((parameter, key))
                used += align(specs[-1].bytes)
        self._expect_room(used, flat)
        self._views = Views(specs)

    @staticmethod
    def _expect_room(used: int, flat: Tensor) -> None:
        if used > flat.numel():
            raise StateError(
                f"the optimizer keeps {used} bytes of state, the plan has {flat.numel()}; "
                "profile and build again"
            )

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
            yield self._trainable
            return
        grads = [parameter.grad for parameter in self._trainable]
        for parameter in self._trainable:
            parameter.grad = None
        for parameter, grad in zip(self._trainable, grads, strict=True):
            parameter.grad = grad
            yield [parameter]
            parameter.grad = None
        for parameter, grad in zip(self._trainable, grads, strict=True):
            parameter.grad = grad

    def _made(self, parameters: Sequence[nn.Parameter]) -> list[tuple[nn.Parameter, str]]:
        """The state of these parameters, or of their masters, that moves."""
        known = dict(zip(map(id, self._trainable), self._twins, strict=True))
        return [
            (twin, key)
            for twin in (known[id(parameter)] for parameter in parameters)
            for key, value in self.optimizer.state[twin].items()
            if _moves(value, twin)
        ]

    def _return_strays(self, state_flat: Tensor | None) -> None:
        """Copy state that the optimizer made anew into the flat, and keep it there."""
        if not self._slots or state_flat is None:
            return
        homes = self._views.at(self._after_masters(state_flat))
        for (parameter, key), home in zip(self._slots, homes, strict=True):
            value = self.optimizer.state[parameter][key]
            if value is not home:
                home.copy_(value)
                self.optimizer.state[parameter][key] = home


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """A master, without memory of its own until it is bound: one value, as far as shapes go."""
    return nn.Parameter(torch.zeros((), device=parameter.device).expand(parameter.shape))


def _moves(value: object, parameter: nn.Parameter) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.shape == parameter.shape
    )
