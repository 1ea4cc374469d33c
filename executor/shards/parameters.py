"""A shard's parameters and their gradients, as views of flats that come and go.

Invariant: parameters and gradients are views of the flats that were bound last. A parameter to
which no microbatch of a step gave a gradient is *absent*: its part of the gradient flat has no
meaning, and the step leaves it out, as a plain loop does where `.grad` is None.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.numerics import Cast, Home, Spec, Views, foreign_hooks, homes, norms_of, same, spec_of
from profiles.schema import Precision

Absent = frozenset[int]  # numbers of trainable parameters without a gradient

NONE: Absent = frozenset()

_NOWHERE, _OWN, _LEFT = -1, -2, -3  # instead of an address: see `bind`, `make` and `leave`


class Parameters:
    """The parameters of some layers, in the order of `parameters()`, a shared one once, without
    those that are `borrowed` from another shard.

    views, grad_views: their layout in a flat, and that of their gradients. masters: layout of the
    fp32 copies at the beginning of the optimizer's state; None where there are none. apart: those
    that are not trained lie in a flat of their own, the base, as `base_views` says.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        precision: Precision = "fp32",
        borrowed: Collection[nn.Parameter] = (),
        *,
        apart: bool = False,
    ) -> None:
        every = {id(p): p for layer in layers for p in layer.parameters()}
        self.borrowed = list(borrowed)
        self.all = list({key: every[key] for key in every if key not in map(id, borrowed)}.values())
        self.trainable = [p for p in self.all if p.requires_grad]
        low = precision == "bf16"
        self._layers = layers
        self.apart = apart
        self.frozen = [p for p in self.all if not p.requires_grad] if apart else []
        self._held = self.trainable if apart else self.all
        self.views = Views([_spec(p, low) for p in self._held])
        self.base_views = Views([_spec(p, low) for p in self.frozen])
        self.grad_views = Views([_spec(p, low) for p in self.trainable])
        self.masters = (
            Views([_spec(p)._replace(dtype=torch.float32) for p in self.trainable]) if low else None
        )
        self.flat = torch.empty(0, dtype=torch.uint8)  # where they are bound
        self.base = torch.empty(0, dtype=torch.uint8)
        self._place = self.flat.data_ptr()
        self._homes: list[Home] | None = None

    def gradients(self, of: Collection[int]) -> Views:
        """The layout of a flat with the gradients of the parameters of these ids alone."""
        pairs = zip(self.trainable, self.grad_views.specs, strict=True)
        return Views([spec for parameter, spec in pairs if id(parameter) in of])

    def write(self, flat: Tensor | None, state: Tensor | None, base: Tensor | None = None) -> None:
        """Copy the current parameters into `flat` (uint8), if there is one, and bind them there;
        those that are apart into `base` (uint8).

        In bf16 they become so now; `state` (uint8) gets the fp32 masters."""
        if self.masters:
            if state is not None:
                for master, parameter in zip(self.masters.at(state), self.trainable, strict=True):
                    master.copy_(parameter.detach())
            for layer in self._layers:
                layer.to(torch.bfloat16)
        if flat is not None:
            for parameter, target in zip(self._held, self.views.at(flat), strict=True):
                target.copy_(parameter.detach())
        if base is not None:
            for parameter, target in zip(self.frozen, self.base_views.at(base), strict=True):
                target.copy_(parameter.detach())
            self.bind_base(base)
        self.bind(flat)

    def bind(self, flat: Tensor | None) -> None:
        """Let the parameters be views of `flat`, whose bytes are already there. None: they have
        their shapes and no memory."""
        place = _NOWHERE if flat is None else flat.data_ptr()
        if place != self._place:
            shapes = map(_shape_of, self.views.specs)
            self._show(place, shapes if flat is None else self.views.at(flat))
            self.flat = torch.empty(0, dtype=torch.uint8) if flat is None else flat

    def bind_base(self, base: Tensor) -> None:
        """Let those that are apart be views of `base`, whose bytes are already there."""
        if base.data_ptr() != self.base.data_ptr():
            for parameter, value in zip(self.frozen, self.base_views.at(base), strict=True):
                parameter.data = value
            self.base = base

    def differs(self, base: Tensor) -> bool:
        """True if some that are apart, as they are now, have other bits than those in `base`."""
        pairs = zip(self.frozen, self.base_views.at(base), strict=True)
        return any(not same(p.detach().to(value.dtype), value) for p, value in pairs)

    def make(self, state: Tensor) -> None:
        """Let the parameters have memory of their own, made from the masters in `state`."""
        assert self.masters is not None, "without masters nothing is cast"
        if self._place != _OWN:
            self._show(_OWN, (master.to(torch.bfloat16) for master in self.masters.at(state)))

    def leave(self) -> None:
        """Let the parameters be empty: using them is an error until they are bound again."""
        self._show(_LEFT, (parameter.new_empty(0) for parameter in self._held))

    def _show(self, place: int, values: Iterable[Tensor]) -> None:
        for parameter, value in zip(self._held, values, strict=True):
            parameter.data = value
        self._place = place

    def casts(self, flat: Tensor, state: Tensor) -> list[Cast]:
        """The casts that make the parameters in `flat` from the masters in `state`, as a step
        would; all of them must be trained."""
        assert self.masters is not None, "without masters nothing is cast"
        pairs = zip(self.views.at(flat), self.masters.at(state), strict=True)
        return [(_line(parameter), _line(master)) for parameter, master in pairs]

    def bind_grads(self, flat: Tensor, absent: Absent | None = NONE) -> None:
        """Let gradients be in `flat`, all but the absent ones; None: all are absent."""
        views = zip(self.trainable, self.grad_views.at(flat), strict=True)
        for number, (parameter, value) in enumerate(views):
            if absent is None or number in absent:
                parameter.grad = None
            elif parameter.grad is not value:
                parameter.grad = value

    def norms(self, flat: Tensor, absent: Absent = NONE) -> Tensor:
        """The norm of each gradient in `flat`, in the order of the trainable parameters, without
        the absent ones."""
        return norms_of([v for n, v in enumerate(self.grad_views.at(flat)) if n not in absent])

    def add_grads(
        self, target: Tensor, other: Tensor, absent: Absent = NONE, others: Absent = NONE
    ) -> Absent:
        """Add the gradients in `other`, without its absent `others`, to those in `target`; the
        parameters absent afterwards."""
        pairs = zip(self.grad_views.at(target), self.grad_views.at(other), strict=True)
        for number, (mine, theirs) in enumerate(pairs):
            if number in others:
                continue
            if number in absent:
                mine.copy_(theirs)
            else:
                mine += theirs
        return absent & others

    def expect_grads(self, flat: Tensor, absent: Absent | None) -> None:
        """Prepare for a backward, whose gradients go to `flat`: they are added to those that are
        there but for the absent ones."""
        if self._homes is None:
            self._homes = homes(self.trainable)
        for home, value in zip(self._homes, self.grad_views.at(flat), strict=True):
            home.view = value
        self.bind_grads(flat, absent)

    def absent(self) -> Absent:
        """After the backward: those that have no gradient yet."""
        return frozenset(n for n, parameter in enumerate(self.trainable) if parameter.grad is None)

    def hollow(self, where: torch.device) -> dict[int, Any]:
        """For a copy of the layers, by the id of what they are for: parameters without memory, and
        what is empty.

        WorkloadError for one with a hook, which would not see the gradients of devices."""
        for name, parameter in nn.ModuleList(self._layers).named_parameters():
            if foreign_hooks(parameter):
                raise WorkloadError(
                    f"parameter {name} of the shard's layers has a hook, which would not see the "
                    "gradients of devices; put it into the layer or the optimizer"
                )
        return _empty(self._layers) | {
            id(p): nn.Parameter(torch.empty(0, dtype=p.dtype, device=where), p.requires_grad)
            for p in (*self.all, *self.borrowed)
        }

    def take_layout(self, other: "Parameters") -> None:
        """Lie in flats as those that this one is a copy of, which may have been empty."""
        self.views, self.grad_views = Views(other.views.specs), Views(other.grad_views.specs)
        self.base_views = Views(other.base_views.specs)


def _empty(layers: Sequence[nn.Module]) -> dict[int, Any]:
    """Other ones for what is empty in modules, mostly lists of hooks: deepcopy would take as long
    for these as for all else."""
    modules = (module for layer in layers for module in layer.modules())
    values = (value for module in modules for value in vars(module).values())
    kinds = (dict, OrderedDict, set)
    return {id(value): type(value)() for value in values if type(value) in kinds and not value}


def _spec(parameter: nn.Parameter, low: bool = False) -> Spec:
    """A parameter's layout in a flat; `low`: once it is bf16."""
    spec = spec_of(parameter)
    floating = parameter.is_floating_point()
    return spec._replace(dtype=torch.bfloat16) if low and floating else spec


def _shape_of(spec: Spec) -> Tensor:
    """One value in the shape."""
    return torch.zeros((), dtype=spec.dtype).expand(spec.shape)


def _line(value: Tensor) -> Tensor:
    """A view of a flat in the order of its memory: masters lie as their parameters do."""
    return value.as_strided((value.numel(),), (1,))
