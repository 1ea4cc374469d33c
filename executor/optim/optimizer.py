"""One shard's optimizer, with its state in flat memory that moves between host and device.

With masters, the optimizer works on fp32 copies of bf16 parameters, which are part of its state:

    state flat   master 0 .. master n | what the optimizer keeps, parameter by parameter
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from executor.errors import RunError
from executor.numerics import Views
from executor.optim import onepass
from executor.optim.recipe import Factory, Recipe
from executor.optim.settings import restore, settings_of
from executor.optim.state import Adopted


class StateError(RunError):
    """The optimizer keeps another amount of state than the plan has room for."""


class Scaling(NamedTuple):
    """The factor of a step's gradients, and one number that is not 0 if the step is left out."""

    factor: Tensor
    left_out: Tensor | None


class ShardOptimizer:
    """A torch optimizer over one shard's parameters.

    Its state is adopted in the first step, and what is made later as far as there is room.

    A scheduler is stepped after every step, also after one that is left out.

    `masters`: how fp32 copies of the trainable parameters lie at the beginning of the state.

    `piecewise`: the first step goes parameter by parameter, so that no more than one parameter's
    state is ever outside of the flat. Torch's own optimizers allow it, unless they make their
    state beforehand; of others it is not known whether they count their steps.

    A parameter without a gradient is left out of a step. What state it has stays, and where it has
    none yet its room is given to it after the first step that it takes part in.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        factory: Factory | Recipe,
        masters: Views | None = None,
    ) -> None:
        recipe = factory if isinstance(factory, Recipe) else Recipe(factory)
        self.parameters = list(parameters)
        self._trainable = [p for p in parameters if p.requires_grad]
        self._home = masters
        self._twins = [_twin(p) for p in self._trainable] if masters else self._trainable
        twins = dict(zip(map(id, self._trainable), self._twins, strict=True))
        self._given = {id(p): twins.get(id(p), p) for p in self.parameters}  # to the optimizer
        self.optimizer, self.scheduler = recipe.make(self.parameters, list(self._given.values()))
        self.piecewise = (
            type(self.optimizer).__module__.startswith("torch.optim.") and not self.optimizer.state
        )
        self._adopted = Adopted(self.optimizer)
        self._begun: set[int] = set()  # parameters whose state is adopted
        self._params = True  # whether steps write the parameters, not only their masters

    @property
    def state_bytes(self) -> int:
        """Bytes of the state's flat; 0 before the first step."""
        return self.adopted_bytes + (self._home.bytes if self._home else 0)

    @property
    def adopted_bytes(self) -> int:
        """Bytes of the state that the optimizer itself keeps, without masters."""
        return self._adopted.bytes

    def state(self) -> dict[nn.Parameter, dict[str, Any]]:
        """Each parameter's state as the optimizer keeps it, with its `master` if it has one."""
        out: dict[nn.Parameter, dict[str, Any]] = {}
        for parameter in self.parameters:
            twin = self._given[id(parameter)]
            master = {"master": twin.detach()} if twin is not parameter else {}
            out[parameter] = master | dict(self.optimizer.state.get(twin, {}))
        return out

    def restore(
        self,
        saved: Mapping[str, Mapping[str, Any]],
        names: Mapping[int, str],
        settings: Sequence[Mapping[str, Any]],
        state_flat: Tensor,
    ) -> None:
        """Go on from `state` by parameter name, `names` by the id of the parameter, and from the
        `settings` of shards that may have been cut in another way. Tensors move into `state_flat`
        as they would in a first step, as far as it has room for them."""
        restore(self.optimizer, self.scheduler, self._names(names), settings)  # says whose it is
        self._bind_masters(state_flat)
        stated = []
        for parameter in self.parameters:
            twin, values = self._given[id(parameter)], dict(saved.get(names[id(parameter)], {}))
            master = values.pop("master", None)
            if master is not None:
                twin.detach().copy_(master)
            if values:
                self.optimizer.state[twin] = values
                stated.append(parameter)
        flat = self._after_masters(state_flat)
        self._adopt([p for p in stated if p.requires_grad], flat, spare=True)

    def settings(self, names: Mapping[int, str]) -> dict[str, Any] | None:
        """Options of groups, scheduler and counters; `names` by the id of the parameter."""
        return settings_of(self.optimizer, self.scheduler, self._names(names))

    def _names(self, names: Mapping[int, str]) -> dict[int, str]:
        return {id(twin): names[key] for key, twin in self._given.items()}

    def step(
        self, state_flat: Tensor | None, scaling: Scaling | None = None, *, params: bool = True
    ) -> None:
        """One optimizer step on the bound parameters and gradients, state in `state_flat`. Without
        `params` it is the masters alone that are stepped."""
        self._params = params
        self._update(state_flat, scaling)
        if self.scheduler is not None:
            self.optimizer._opt_called = True  # type: ignore[attr-defined]
            self.scheduler.step()

    def _update(self, state_flat: Tensor | None, scaling: Scaling | None) -> None:
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
        """True if the step looks at `found_inf` itself, so that nobody waits for the device."""
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        return fused and self._home is None

    def _step(self, state_flat: Tensor | None, factor: Tensor | None) -> None:
        met = [p for p in self._trainable if p.grad is not None]
        new = [p for p in met if id(p) not in self._begun]
        self.bind(state_flat)
        if not new:
            self._go(met, factor)
        elif self.piecewise:
            self._piece_by_piece(met, new, factor, state_flat)
        else:
            self._go(met, factor)
            self._adopt(self._trainable, self._after_masters(state_flat))
        if new:
            self._expect_room(self._after_masters(state_flat))
        self._settle(state_flat)

    def _go(self, parameters: Sequence[nn.Parameter], factor: Tensor | None) -> None:
        """Step these parameters, which have gradients; others must have none."""
        if not parameters and self.piecewise:
            return
        grads = [p.grad for p in parameters if p.grad is not None]
        if self._home is not None:
            twins = [self._given[id(p)] for p in parameters]
            values = [p.data for p in parameters] if self._params else None
            if factor is not None and factor.device.type != "cpu":  # nobody waits for its value
                onepass.plain_step(self.optimizer, twins, values, grads, factor)
                return
            scale = 1.0 if factor is None else float(factor)
            if not onepass.step(self.optimizer, twins, values, grads, scale):
                onepass.plain_step(self.optimizer, twins, values, grads, scale)
            return
        if factor is not None and grads:
            torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        self.optimizer.step()

    def bind(self, state_flat: Tensor | None) -> None:
        """Point masters and the adopted state at `state_flat`, whose bytes are already there."""
        self._bind_masters(state_flat)
        if state_flat is not None:
            self._adopted.bind(self._after_masters(state_flat))
        self._adopted.bind_others()

    def _bind_masters(self, state_flat: Tensor | None) -> None:
        if self._home is not None and state_flat is not None:
            for twin, value in zip(self._twins, self._home.at(state_flat), strict=True):
                twin.data = value

    def _after_masters(self, state_flat: Tensor | None) -> Tensor:
        """The part of the state's flat behind the fp32 masters."""
        if state_flat is None:
            return torch.empty(0)
        return state_flat[self._home.bytes if self._home else 0 :]

    def _adopt(
        self, parameters: Sequence[nn.Parameter], flat: Tensor, *, spare: bool = False
    ) -> None:
        """Move what state these parameters have since their first step into the flat, behind that
        of others. What has no room there is counted, but for `spare` state, which stays beside."""
        for parameter in parameters:
            twin = self._given[id(parameter)]
            kept = self.optimizer.state.get(twin, {})
            if id(parameter) not in self._begun and (kept or parameter.grad is not None):
                self._begun.add(id(parameter))
                self._adopted.take(twin, flat, spare=spare)

    def _expect_room(self, flat: Tensor) -> None:
        if self._adopted.bytes > flat.numel():
            raise StateError(
                f"the optimizer keeps {self._adopted.bytes} bytes of state, the plan has "
                f"{flat.numel()}; profile and build again"
            )

    def _piece_by_piece(
        self,
        met: Sequence[nn.Parameter],
        new: Sequence[nn.Parameter],
        factor: Tensor | None,
        state_flat: Tensor | None,
    ) -> None:
        """Step those that have state, then each of the new ones while all others have no
        gradient; its state moves into the flat before the next one's is made."""
        grads = [(parameter, parameter.grad) for parameter in met]
        fresh = {id(parameter) for parameter in new}
        for parameter in new:
            parameter.grad = None
        self._go([parameter for parameter in met if id(parameter) not in fresh], factor)
        for parameter in met:
            parameter.grad = None
        for parameter, grad in grads:
            if id(parameter) in fresh:
                parameter.grad = grad
                self._go([parameter], factor)
                self._adopt([parameter], self._after_masters(state_flat))
                parameter.grad = None
        for parameter, grad in grads:
            parameter.grad = grad

    def _settle(self, state_flat: Tensor | None) -> None:
        """After a step: let what the optimizer has made anew or late lie in the flat."""
        if state_flat is None:
            return
        flat = self._after_masters(state_flat)
        self._adopted.return_strays(flat)
        if len(self._begun) == len(self._trainable):  # else the room may be somebody's
            self._adopted.take_late(self._twins, flat)


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """A master, without memory of its own until it is bound: one value, as far as shapes go."""
    return nn.Parameter(torch.zeros((), device=parameter.device).expand(parameter.shape))
