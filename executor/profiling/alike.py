"""Layers that are alike cost the same: one of a kind is measured, others are checked or copied.

A layer's kind is what decides its time and bytes: its classes and their settings, the shapes of
its parameters, and the ops that it runs, forward and backward, on tensors of which shapes, types
and strides. All that tells layers of one kind apart are values. The second layer of a kind and a
task's last one are checked with few samples; where a check fails the kind is no longer trusted,
and all its layers in the task are measured.
"""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace as changed
from torch import Tensor, nn
from torch.optim import Optimizer

from executor.errors import WorkloadError
from executor.numerics import OpMode, hold, needs_norms
from executor.optim import Recipe
from executor.profiling.bench import Bench, Case
from executor.profiling.layer import FEWEST, Lab, UpdateCost, layer_cost, update_costs
from executor.shards import Shard
from profiles.schema import LayerCost, Time

# Two measurements agree unless their spreads are so far apart: whatever else the machine does may
# slow one of them down by as much.
_FACTOR = 2
_NOISE_US = 100

Costs = tuple[LayerCost, ...]  # by microbatch, ascending
Updates = tuple[UpdateCost, UpdateCost, UpdateCost | None]  # on device and host, and the norms


class Look(NamedTuple):
    """A run of a layer as seen: a digest of its ops and of how what it gives lies in memory, its
    draws, its output."""

    ops: str
    draws: int | None
    output: Any


class _Ops(OpMode):
    """Digests every op that runs while it is active, and what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.blake2b(digest_size=16)

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        told = (str(func), _told(args), _told(kwargs))
        self.digest.update(repr(told[:1] if func.is_view else told).encode())  # views say where
        return func(*args, **kwargs)


def look(bench: Bench) -> Look:
    """Run the layer forward twice, and backward. DrawError for draws in its backward."""
    source, ops = bench.device.source, _Ops()
    source.set(bench.state)
    kept = bench.graph()
    end = source.get()
    del kept
    source.set(bench.state)
    with ops:
        again = bench.recompute_backward()
    ops.digest.update(repr((bench.layout, bench.out_bytes)).encode())
    draws = source.count(bench.state, end) if torch.equal(again, end) else None
    return Look(ops.digest.hexdigest(), draws, bench.made)


def part_of(layer: nn.Module, first: bool, last: bool) -> Hashable:
    """A layer as seen before it runs: its classes with what they say of their settings,
    its parameters' shapes, and whether it is a task's first one, which has no gradients to hand on,
    or the last one, which has the loss."""
    classes = tuple((type(module), _settings(module)) for module in layer.modules())
    return classes, _told(list(layer.parameters())), first, last


def parts_of(layers: Sequence[nn.Module]) -> list[Hashable]:
    """`part_of` each of a task's layers."""
    last = len(layers) - 1
    return [part_of(layer, n == 0, n == last) for n, layer in enumerate(layers)]


def kind_of(cases: Sequence[Case], looks: Mapping[int, Look]) -> Hashable:
    """The kind of the layer whose cases these are, at the sizes that it can be run with."""
    case = cases[0]
    sizes = tuple(
        (case.microbatch, repr(hold(case.x).layout), looks[case.microbatch].ops) for case in cases
    )
    return _part(case), case.task.precision, sizes


def _part(case: Case) -> Hashable:
    return part_of(case.layer, case.first, case.batch is not None)


@dataclass(frozen=True)
class _Copied:
    """A layer with the costs of another one, and its own draws."""

    index: int
    layer: nn.Module
    draws: tuple[int | None, ...]


class Kinds:
    """The kinds of layers that one profile has seen, and what they cost.

    layers, measured, checked: how many there were, were measured in full, and only checked.
    """

    def __init__(self, lab: Lab) -> None:
        self.layers = self.measured = self.checked = 0
        self.device = lab.device
        self._lab, self._few = lab, replace(lab, samples=min(FEWEST, lab.samples))
        self._costs: dict[Hashable, Costs] = {}
        self._updates: dict[Hashable, Updates] = {}
        self._met: Counter[Hashable] = Counter()
        self._uneven: set[Hashable] = set()
        self._left: Counter[Hashable] = Counter()
        self._copied: dict[Hashable, list[_Copied]] = {}

    def begin(self, layers: Sequence[nn.Module]) -> None:
        """The layers of another task come, in this order."""
        self._left = Counter(parts_of(layers))
        self._copied = {}

    def costs(
        self, index: int, cases: Sequence[Case], looks: Mapping[int, Look], shard: Shard
    ) -> dict[int, Costs]:
        """Costs of the task's next layer, by its index, and of earlier ones that turn out to be
        less alike than it seemed. WorkloadError where no size fits the device."""
        case = cases[-1]
        kind = kind_of(cases, looks)
        part = _part(case)
        self._left[part] -= 1
        self._met[kind] += 1
        self.layers += 1
        known = self._costs.get(kind)
        if known is None or kind in self._uneven:
            costs = self._measured(cases, shard)
            self._costs.setdefault(kind, costs)
            return {index: costs}
        copied = _Copied(index, case.layer, tuple(look.draws for look in looks.values()))
        if self._met[kind] == 2 or not self._left[part]:
            largest = next(c for c in cases if c.microbatch == known[-1].microbatch)
            if not agree(layer_cost(largest, self._few, shard), known[-1]):
                return self._parted(kind, cases, copied, shard)
            self.checked += 1
        self._copied.setdefault(kind, []).append(copied)
        return {index: _own(known, copied.draws)}

    def updates(self, case: Case, owned: Sequence[nn.Parameter]) -> Updates:
        """The cost of updates of these parameters of the case's layer."""
        kind = _update_kind(case, owned)
        if kind not in self._updates:
            self._updates[kind] = update_costs(case, owned, self._lab)
        return self._updates[kind]

    def __str__(self) -> str:
        """The numbers of layers measured, checked and copied, in words."""
        copied = self.layers - self.measured - self.checked
        return (
            f"{self.measured} of {self.layers} layers measured, {self.checked} like them checked, "
            f"{copied} taken to cost the same"
        )

    def _measured(self, cases: Sequence[Case], shard: Shard | None) -> Costs:
        """In full, at the sizes that fit the device."""
        costs: list[LayerCost] = []
        for case in cases:
            try:
                costs.append(layer_cost(case, self._lab, shard))
            except torch.OutOfMemoryError:
                break
        if not costs:
            raise WorkloadError("does not fit the device with the smallest microbatch")
        self.measured += 1
        return tuple(costs)

    def _parted(
        self, kind: Hashable, cases: Sequence[Case], last: _Copied, shard: Shard
    ) -> dict[int, Costs]:
        """A layer and, unless it agrees with its kind now, those before it that were copied."""
        costs, known = self._measured(cases, shard), self._costs[kind]
        if agree(costs[-1], known[-1]):
            return {last.index: costs}
        self._uneven.add(kind)
        found = {last.index: costs}
        for copied in self._copied.pop(kind, []):
            others = [replace(case, layer=copied.layer) for case in cases]
            found[copied.index] = _own(self._measured(others, None), copied.draws)
        return found


def _own(costs: Costs, draws: Sequence[int | None]) -> Costs:
    """Costs of another layer as those of one that draws so often."""
    pairs = zip(costs, draws, strict=False)
    return tuple(changed(cost, rng_draws=count) for cost, count in pairs)


def agree(one: LayerCost, other: LayerCost) -> bool:
    """True if two measurements may be of layers that cost the same."""
    pairs = [(one.forward, other.forward), (one.recompute_backward, other.recompute_backward)]
    if one.pack_backward and other.pack_backward:
        pairs.append((one.pack_backward, other.pack_backward))
    return _bytes(one) == _bytes(other) and all(_near(a, b) and _near(b, a) for a, b in pairs)


def _bytes(cost: LayerCost) -> tuple[int | None, ...]:
    peaks = cost.forward_peak_bytes, cost.backward_peak_bytes
    return cost.in_bytes, cost.out_bytes, cost.saved_bytes, *peaks, cost.offload_bytes


def _near(one: Time, other: Time) -> bool:
    return one.p10_us <= _FACTOR * other.p90_us + _NOISE_US


def _update_kind(case: Case, owned: Sequence[nn.Parameter]) -> Hashable:
    """The key of an update's cost: shapes, precision, and the optimizer's settings for them,
    of which numbers count as zero or not."""
    task = case.task
    noted = needs_norms(task.precision, task.clip)
    made: Optimizer | None = None
    if any(p.requires_grad for p in owned):
        recipe = replace(case.recipe or Recipe(task.optimizer), scheduler=None)
        made, _ = recipe.make(owned, owned)
    return _told(list(owned)), task.precision, noted, type(made), tuple(_groups(made, owned))


def _groups(made: Optimizer | None, owned: Sequence[nn.Parameter]) -> Iterator[Hashable]:
    places = {id(p): place for place, p in enumerate(owned)}
    for group in made.param_groups if made else ():
        options = {key: value for key, value in group.items() if key != "params"}
        yield tuple(places[id(p)] for p in group["params"]), _told(options)


def _settings(module: nn.Module) -> str:
    with suppress(Exception):  # whatever a user's own raises
        return str(module.extra_repr())
    return ""


def _told(value: Any) -> Hashable:
    """The part of a value that may decide how long it takes to go through it; for a number with a
    fraction, True if it is not zero."""
    match value:
        case Tensor():
            return value.dtype, tuple(value.shape), _stride(value), value.requires_grad
        case list() | tuple():
            return tuple(map(_told, value))
        case dict():
            return tuple((key, _told(item)) for key, item in value.items())
        case float() | complex():
            return bool(value)
        case None | bool() | int() | str() | torch.dtype():
            return value
    return type(value).__name__


def _stride(tensor: Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout == torch.strided else ()
