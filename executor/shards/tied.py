"""Tied weights of layers in several shards: one owner's flat, and gradients added in order.

A plain loop's backward adds a microbatch's gradients of a shared parameter user by user, the last
user's first, and then adds the sum to the parameter's gradient. Here every shard's backward begins
with the sum of those above it, as one more gradient of the parameter that autograd already has,
and leaves the new sum for the next one; the owner's adds it to the parameter's gradient.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from executor.numerics import AUTOCAST, Views, homes
from executor.shards.checks import expect
from executor.shards.parameters import NONE, Absent, Parameters
from plans.schema import Task as PlanTask
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

    def of(self, copies: Mapping[int, Any]) -> "Tied":
        """This one for `copies` of the parameters, by the ids of the originals."""
        borrowed, summed = (
            {number: copies[id(parameter)] for number, parameter in own.items()}
            for own in (self.borrowed, self.summed)
        )
        return Tied(self.flat, self.sums, borrowed, summed)


def ties(layers: Sequence[nn.Module]) -> tuple[tuple[int, ...], ...]:
    """Groups of layer indices that share a Parameter, directly or through others, ascending."""
    groups: list[tuple[set[int], set[int]]] = []  # ids of parameters, layers that hold them
    for index, layer in enumerate(layers):
        held, members = {id(p) for p in layer.parameters()}, {index}
        for group in [group for group in groups if not held.isdisjoint(group[0])]:
            groups.remove(group)
            held, members = held | group[0], members | group[1]
        groups.append((held, members))
    return tuple(sorted(tuple(sorted(members)) for _, members in groups if len(members) > 1))


def tying(plan: PlanTask, layers: Sequence[nn.Module], precision: Precision) -> list[Tied | None]:
    """Each of the plan's shards' part in ties that cross shards.

    MismatchError for ties that are not those of the plan.
    """
    apart = [group for group in ties(layers) if len(set(plan.homes(group))) > 1]
    owners = [n or 0 for n in {plan.homes(group)[0] for group in apart}]
    owner = plan.shards[owners[0] if owners else 0]
    home = Parameters(layers[owner.first_layer : owner.end_layer], precision)
    shared = set().union(*(_several(layers[k].parameters() for k in group) for group in apart))
    sums = home.gradients(shared)
    pairs = {
        "shards that own parameters of other shards": (min(plan.tie_bytes, 1), len(owners)),
        "shared parameters without an owner": (0, len(shared - set(map(id, home.all)))),
        "bytes of gradients that tied layers share": (plan.tie_bytes, sums.bytes),
    }
    expect(f"task {plan.name}", pairs)
    learn = [p for p in home.trainable if id(p) in shared]
    made: list[Tied | None] = []
    for cut in plan.shards:
        every = (p for layer in layers[cut.first_layer : cut.end_layer] for p in layer.parameters())
        mine = shared.intersection(map(id, every))
        borrowed = {n: p for n, p in enumerate(home.all) if id(p) in mine and cut is not owner}
        summed = {n: p for n, p in enumerate(learn) if id(p) in mine}
        made.append(Tied(home.views, sums, borrowed, summed) if mine else None)
    return made


def _several(held: Iterable[Iterable[Tensor]]) -> set[int]:
    """The ids of tensors that several hold."""
    each = chain.from_iterable({id(tensor) for tensor in own} for own in held)
    return {key for key, count in Counter(each).items() if count > 1}


def tie_bytes(layers: Sequence[nn.Module], group: Sequence[int], precision: Precision) -> int:
    """Bytes of the gradients that a group of tied layers shares; 0 for a group that must not be
    cut."""
    if joined(layers, group, precision):
        return 0
    members = [layers[layer] for layer in group]
    shared = _several(x.parameters() for x in members)
    return Parameters(members[:1], precision).gradients(shared).bytes


def joined(layers: Sequence[nn.Module], group: Sequence[int], precision: Precision) -> str:
    """The reason why a group of tied layers must not be cut; empty where it may be."""
    members = [layers[layer] for layer in group]
    shared, first = _several(x.parameters() for x in members), members[0].parameters()
    if not shared.issubset(map(id, first)):
        return "the first one does not have all that they share"
    if _several(x.buffers() for x in members):
        return "they share a buffer as well; a buffer for each layer may be cut"
    # Layers that cast a weight share what they made of it, and its gradients are added before they
    # are cast back.
    if precision in AUTOCAST and sum(_casts(x, shared) for x in members) > 1:
        return "autocast gives several of them one copy of a weight"
    return ""


def _casts(layer: nn.Module, shared: set[int]) -> bool:
    """True if autocast may make something else of a shared parameter in this layer. Of a piece of
    the model's own code or graph its modules do not say so: it may hold some that it does not
    call."""
    if (picked := getattr(layer, "picked_parameters", None)) is not None:
        return any(id(p) in shared - picked for p in layer.parameters())
    picks = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    own = () if picks else layer.parameters(recurse=False)
    return any(id(p) in shared for p in own) or any(_casts(x, shared) for x in layer.children())
