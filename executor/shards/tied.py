"""Tied weights of layers in several shards: one owner's flat, and gradients added in order.

A plain loop's backward adds a microbatch's gradients of a shared parameter user by user, the last
user's first, and then adds the sum to the parameter's gradient. Here every shard's backward begins
with the sum of those above it, as one more gradient of the parameter that autograd already has,
and leaves the new sum for the next one; the owner's adds it to the parameter's gradient.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn

from executor.errors import MismatchError
from executor.numerics import AUTOCAST, Views, homes
from executor.shards.parameters import NONE, Absent, Parameters
from plans.schema import Task as PlanTask
from plans.ties import homes as shards_of
from profiles.schema import Precision


class Tie(NamedTuple):
    """A microbatch's gradient sums (uint8): those given to a backward, and the flat that it writes
    its own to. The `absent` parameters have none in what is given."""

    given: Tensor | None
    handed: Tensor | None
    absent: Absent = NONE


@dataclass(eq=False)
class Tied:
    """A shard's part in parameters that others use as well.

    flat: how the owner's parameters lie. sums: how gradients of those that are shared and learn
    do, in the owner's order. borrowed: in a shard that is not the owner, its parameters by their
    number in the owner's flat; summed: those of the shard that learn, by their number in the sums.
    """

    flat: Views
    sums: Views
    borrowed: Mapping[int, nn.Parameter]
    summed: Mapping[int, nn.Parameter]
    bound: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))

    def bind(self, flat: Tensor) -> None:
        """Let borrowed parameters be views of the owner's flat."""
        if flat.data_ptr() != self.bound.data_ptr():
            values = self.flat.at(flat)
            for number, parameter in self.borrowed.items():
                parameter.data = values[number]
            self.bound = flat

    def begin(self, tie: Tie) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Prepare for a backward: yield each shared parameter with its sum from the later shards;
        this shard's own sum is written to `tie.handed`."""
        if tie.handed is not None:
            views, own = self.sums.at(tie.handed), list(self.summed.values())
            for number, parameter, home in zip(self.summed, own, homes(own), strict=True):
                home.view, parameter.grad = views[number], None
        if tie.given is not None:
            views = self.sums.at(tie.given)
            for number, parameter in self.summed.items():
                if number not in tie.absent:
                    yield parameter, views[number]

    def absent(self, tie: Tie) -> Absent:
        """After the backward: the parameters that have no gradient in what is handed on."""
        everything = frozenset(range(len(self.sums.specs)))
        before = everything if tie.given is None else tie.absent
        return before - {n for n, p in self.summed.items() if p.grad is not None}

    def of(self, copies: Mapping[int, object]) -> "Tied":
        """This one for `copies` of the parameters, by the ids of the originals."""

        def copied(own: Mapping[int, nn.Parameter]) -> dict[int, nn.Parameter]:
            found = {number: copies[id(parameter)] for number, parameter in own.items()}
            return {n: p for n, p in found.items() if isinstance(p, nn.Parameter)}

        return Tied(self.flat, self.sums, copied(self.borrowed), copied(self.summed))


def ties(layers: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Groups of layer indices that share a Parameter, directly or through others, ascending."""
    groups: list[set[int]] = []
    holders: dict[int, set[int]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters():
            holders.setdefault(id(parameter), set()).add(index)
    for holder in holders.values():
        if len(holder) > 1:
            touching = [group for group in groups if group & holder]
            groups = [group for group in groups if not group & holder]
            groups.append(holder.union(*touching))
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def tying(plan: PlanTask, layers: Sequence[nn.Module], precision: Precision) -> list[Tied | None]:
    """Each of the plan's shards' part in ties that cross shards.

    MismatchError for ties that are not those of the plan.
    """
    groups = ties(layers)
    apart = [group for group in groups if len(set(shards_of(plan, group))) > 1]
    owners = {shards_of(plan, group)[0] for group in apart}
    if (apart and not plan.tie_bytes) or len(owners) > 1:
        places = sorted(n for n in set(shards_of(plan, apart[0])) if n is not None)
        raise MismatchError(
            f"task {plan.name}: layers {list(apart[0])} share a parameter but the plan has them "
            f"in shards {places}; profile and build again"
        )
    nothing: list[Tied | None] = [None] * len(plan.shards)
    made = _tied(plan, layers, apart, precision) if apart else nothing
    size = next((tied.sums.bytes for tied in made if tied), 0)
    if size != plan.tie_bytes:
        raise MismatchError(
            f"task {plan.name}: the model's tied layers share {size} bytes of gradients, the plan "
            f"has {plan.tie_bytes}; profile and build again"
        )
    return made


def _tied(
    plan: PlanTask,
    layers: Sequence[nn.Module],
    apart: Sequence[tuple[int, ...]],
    precision: Precision,
) -> list[Tied | None]:
    own = [
        {id(p): p for layer in layers[s.first_layer : s.end_layer] for p in layer.parameters()}
        for s in plan.shards
    ]
    owner = shards_of(plan, apart[0])[0] or 0
    held = plan.shards[owner]
    home = Parameters(layers[held.first_layer : held.end_layer], precision)
    shared = set().union(*(shared_in(layers, group) for group in apart))
    if not shared <= own[owner].keys():
        raise MismatchError(
            f"task {plan.name}: tied layers share a parameter that shard {owner}, with the first "
            "of them, does not have; profile and build again"
        )
    learn = [p for p in home.trainable if id(p) in shared]
    sums = home.gradients([id(p) for p in learn])
    made: list[Tied | None] = []
    for k, mine in enumerate(own):
        borrowed = {n: p for n, p in enumerate(home.all) if id(p) in mine and id(p) in shared}
        summed = {n: p for n, p in enumerate(learn) if id(p) in mine}
        if not borrowed:
            made.append(None)
        else:
            made.append(Tied(home.views, sums, {} if k == owner else borrowed, summed))
    return made


def shared_in(layers: Sequence[nn.Module], group: Sequence[int]) -> set[int]:
    """The ids of parameters that several layers of a group hold."""
    each = ({id(p) for p in layers[layer].parameters()} for layer in group)
    return {key for key, count in Counter(chain.from_iterable(each)).items() if count > 1}


def tie_bytes(layers: Sequence[nn.Module], group: Sequence[int], precision: Precision) -> int:
    """Bytes of the gradients that a group of tied layers shares; 0 for a group that must not be
    cut, since not all of that is the first one's, or because layers share more than parameters.
    """
    first, *others = (layers[layer] for layer in group)
    shared = shared_in(layers, group)
    if not shared <= {id(p) for p in first.parameters()}:
        return 0
    each = ({id(b) for b in layer.buffers()} for layer in (first, *others))
    if any(count > 1 for count in Counter(chain.from_iterable(each)).values()):
        return 0
    # Layers that cast a weight share what they made of it, and its gradients are added before they
    # are cast back.
    if precision in AUTOCAST and sum(map(lambda x: _casts(x, shared), (first, *others))) > 1:
        return 0
    parameters = Parameters([first], precision)
    return parameters.gradients([id(p) for p in parameters.trainable if id(p) in shared]).bytes


def _casts(layer: nn.Module, shared: set[int]) -> bool:
    """True if autocast may make something else of a shared parameter in this layer."""
    return any(
        id(parameter) in shared
        for module in layer.modules()
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    )
