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
from executor.numerics import Spec, Views
from executor.optim.masters import Stepped, step_masters
from executor.optim.recipe import Factory, Recipe
from executor.optim.settings import restore, settings_of
from executor.optim.state import Adopted


class StateError(RunError):
    """The optimizer keeps another amount of state than the plan has room for."""


class Scaling(NamedTuple):
    """The factor of a step's gradients, and one number that is not 0 if the step is left out."""

    factor: Tensor
    left_out: Tensor | None


class Carried(NamedTuple):
    """All that an optimizer has beside its flat, for another one of the same shard: parameters by
    name. slots: how state lies in the flat; state: the values, None of those in their slot; begun:
    the parameters whose state is adopted."""

    settings: dict[str, Any]
    slots: list[tuple[str, str, Spec]]
    state: dict[str, dict[str, Any]]
    begun: list[str]
    adopted_bytes: int


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
        self._masters = masters
        self._trainable = [p for p in parameters if p.requires_grad]
        self._given = {p: _twin(p) if masters and p.requires_grad else p for p in parameters}
        self.optimizer, self.scheduler = recipe.make(parameters, list(self._given.values()))
        self.piecewise = (
            type(self.optimizer).__module__.startswith("torch.optim.") and not self.optimizer.state
        )
        self._adopted = Adopted(self.optimizer)
        self._begun: set[nn.Parameter] = set()  # whose state is adopted
        self._params = True  # whether steps write the parameters, not only their masters

    @property
    def state_bytes(self) -> int:
        """Bytes of the state's flat; 0 before the first step."""
        return self.adopted_bytes + self._master_bytes

    @property
    def adopted_bytes(self) -> int:
        """Bytes of the state that the optimizer itself keeps, without masters."""
        return self._adopted.bytes

    @property
    def _master_bytes(self) -> int:
        return self._masters.bytes if self._masters else 0

    def state(self) -> dict[nn.Parameter, dict[str, Any]]:
        """Each parameter's state as the optimizer keeps it, with its `master` if it has one."""
        return {
            parameter: ({"master": twin.detach()} if twin is not parameter else {})
            | dict(self.optimizer.state.get(twin, {}))
            for parameter, twin in self._given.items()
        }

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
        self.bind(state_flat)
        for parameter, twin in self._given.items():
            values = dict(saved.get(names[id(parameter)], {}))
            master = values.pop("master", None)
            if master is not None:
                twin.detach().copy_(master)
            if values:
                self.optimizer.state[twin] = values
        self._adopt(state_flat[self._master_bytes :], spare=True)

    def settings(self, names: Mapping[int, str]) -> dict[str, Any]:
        """Options of groups, scheduler and counters; `names` by the id of the parameter."""
        return settings_of(self.optimizer, self.scheduler, self._names(names))

    def carried(self, names: Mapping[int, str]) -> Carried:
        """The state beside the flat, for another one; `names` by the id of the parameter."""
        twins = self._names(names)
        state = {
            twins[id(twin)]: {
                key: None if self._adopted.at(twin, key) else value
                for key, value in self.optimizer.state.get(twin, {}).items()
            }
            for twin in self._given.values()
        }
        slots = [(twins[id(twin)], key, spec) for twin, key, spec in self._adopted.slots()]
        begun = sorted(names[id(parameter)] for parameter in self._begun)
        return Carried(self.settings(names), slots, state, begun, self._adopted.bytes)

    def carry_on(self, known: Carried, names: Mapping[int, str], state_flat: Tensor) -> None:
        """Go on from there."""
        restore(self.optimizer, self.scheduler, self._names(names), [known.settings])
        twins = {names[id(parameter)]: twin for parameter, twin in self._given.items()}
        self.bind(state_flat)
        flat = state_flat[self._master_bytes :]
        slots = [(twins[name], key, spec) for name, key, spec in known.slots]
        places = self._adopted.take_over(slots, flat, known.adopted_bytes)
        for name, values in known.state.items():
            if values:
                twin = twins[name]
                self.optimizer.state[twin] = {
                    key: places[twin, key] if value is None and (twin, key) in places else value
                    for key, value in values.items()
                }
        self._begun = {p for p in self._trainable if names[id(p)] in known.begun}

    def _names(self, names: Mapping[int, str]) -> dict[int, str]:
        return {id(twin): names[id(parameter)] for parameter, twin in self._given.items()}

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
        factor, left_out = scaling or (None, None)
        if left_out is not None and self._skips_itself():
            self.optimizer.found_inf = left_out.float()  # type: ignore[attr-defined]
        elif left_out is not None and bool(left_out):
            return
        try:
            self._step(state_flat, factor)
        finally:
            with suppress(AttributeError):
                del self.optimizer.found_inf  # type: ignore[attr-defined]

    def _skips_itself(self) -> bool:
        """True if the step looks at `found_inf` itself, so that nobody waits for the device."""
        fused = all(group.get("fused") for group in self.optimizer.param_groups)
        return fused and self._masters is None

    def _step(self, state_flat: Tensor | None, factor: Tensor | None) -> None:
        """A step of the parameters that have gradients. What the optimizer has made anew or late
        lies in the flat afterwards."""
        self.bind(state_flat)
        flat = torch.empty(0) if state_flat is None else state_flat[self._master_bytes :]
        met = [p for p in self._trainable if p.grad is not None]
        if self.piecewise and not self._begun.issuperset(met):
            self._piece_by_piece(met, factor, flat)
        else:
            self._go(met, factor)
            self._adopt(flat)
        if self._adopted.bytes > flat.numel():
            raise StateError(
                f"the optimizer keeps {self._adopted.bytes} bytes of state, the plan has "
                f"{flat.numel()}; profile and build again"
            )
        self._adopted.return_strays(flat)
        if len(self._begun) == len(self._trainable):  # else the room may be somebody's
            for parameter in self._trainable:
                self._adopted.take(self._given[parameter], flat, spare=True)

    def _go(self, parameters: Sequence[nn.Parameter], factor: Tensor | None) -> None:
        """Step these parameters, which have gradients; others must have none."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if self._masters is not None:
            masters = [self._given[p] for p in parameters]
            params = [p.data for p in parameters] if self._params else None
            scale: float | Tensor = 1.0 if factor is None else factor
            if isinstance(scale, Tensor) and scale.device.type == "cpu":  # else nobody waits for it
                scale = float(scale)
            step_masters(Stepped(self.optimizer, masters, params, grads), scale)
            return
        if factor is not None and grads:
            torch._foreach_mul_(grads, factor.to(grads[0].dtype))
        self.optimizer.step()

    def _piece_by_piece(
        self, met: Sequence[nn.Parameter], factor: Tensor | None, flat: Tensor
    ) -> None:
        """Step each parameter while all others have no gradient; what state is new moves into the
        flat before the next one's is made."""
        grads = [(parameter, parameter.grad) for parameter in met]
        for parameter in met:
            parameter.grad = None
        for parameter, grad in grads:
            parameter.grad = grad
            self._go([parameter], factor)
            self._adopt(flat)
            parameter.grad = None
        for parameter, grad in grads:
            parameter.grad = grad

    def bind(self, state_flat: Tensor | None) -> None:
        """Point masters and the adopted state at `state_flat`, whose bytes are already there."""
        if state_flat is not None:
            if self._masters is not None:
                values = self._masters.at(state_flat)
                for parameter, value in zip(self._trainable, values, strict=True):
                    self._given[parameter].data = value
            self._adopted.bind(state_flat[self._master_bytes :])
        self._adopted.bind_others()

    def _adopt(self, flat: Tensor, *, spare: bool = False) -> None:
        """Move what state parameters have since their first step into the flat, behind that of
        others. What has no room there is counted, but for `spare` state, which stays beside."""
        for parameter in self._trainable:
            twin = self._given[parameter]
            made = parameter.grad is not None or self.optimizer.state.get(twin)
            if made and parameter not in self._begun:
                self._begun.add(parameter)
                self._adopted.take(twin, flat, spare=spare)


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """A master, without memory of its own until it is bound: one value, as far as shapes go."""
    return nn.Parameter(torch.zeros((), device=parameter.device).expand(parameter.shape))
