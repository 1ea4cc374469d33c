"""Layers that are alike cost the same: one of a kind is measured, others are checked or copied.

A layer's kind is what decides its time and bytes: its classes and their settings, the shapes of
its parameters, and the ops that it runs, forward and backward, on tensors of which shapes, types
and strides. All that tells layers of one kind apart are values. The second layer of a kind and a
task's last one are checked with few samples; where a check fails the kind is no longer trusted,
and all its layers in the task are measured.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError
from executor.numerics import OpMode, hold, needs_norms
from executor.optim import Recipe
from executor.profiling.bench import Bench, Case, moved
from executor.profiling.layer import FEWEST, Lab, layer_cost, layer_state
from profiles.schema import Layer, LayerCost, Time

# Two measurements agree unless their spreads are so far apart: whatever else the machine does may
# slow one of them down by as much.
_FACTOR = 2
_NOISE_US = 100

Costs = tuple[LayerCost, ...]  # by microbatch, ascending


class Look(NamedTuple):
    """A run of a layer as seen: a digest of its ops, of its draws and of how what it gives lies in
    memory; its output."""

    digest: str
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
    draws = source.count(bench.state, end) if torch.equal(again, end) else None
    ops.digest.update(repr((bench.layout, bench.out_bytes, draws)).encode())
    return Look(ops.digest.hexdigest(), bench.made)


def parts_of(layers: Sequence[nn.Module]) -> list[Hashable]:
    """Each of a task's layers as seen before it runs."""
    last = len(layers) - 1
    return [_part_of(layer, n == 0, n == last) for n, layer in enumerate(layers)]


def _part_of(layer: nn.Module, first: bool, last: bool) -> Hashable:
    """The classes of a layer with what they say of their settings, its parameters' shapes, and
    whether it is a task's first one, which has no gradients to hand on, or the last one, which has
    the loss."""
    classes = tuple((type(module), _settings(module)) for module in layer.modules())
    return classes, _told(list(layer.parameters())), first, last


def kind_of(cases: Sequence[Case], looks: Mapping[int, Look]) -> Hashable:
    """The kind of the layer whose cases these are, at the sizes that it can be run with."""
    case = cases[0]
    sizes = tuple(
        (case.microbatch, repr(hold(case.x).layout), looks[case.microbatch].digest)
        for case in cases
    )
    return _part_of(case.layer, case.first, case.batch is not None), case.task.precision, sizes


class Alike:
    """Layers of a task that are of one kind, by index, and the cases of those to be measured: the
    first, the second and the last."""

    def __init__(self) -> None:
        self.layers: dict[int, nn.Module] = {}
        self.cases: list[list[Case]] = []

    def add(self, index: int, cases: Sequence[Case]) -> None:
        """The next layer. Its cases wait on the host."""
        self.layers[index] = cases[0].layer
        kept = [replace(case, x=moved(case.x, torch.device("cpu"))) for case in cases]
        self.cases = [*self.cases[:2], kept]


class Kinds:
    """The kinds of layers that one profile has seen, and what they cost.

    layers, measured, checked: how many there were, were measured in full, and only checked.
    """

    def __init__(self, lab: Lab) -> None:
        self.layers = self.measured = self.checked = 0
        self.device = lab.device
        self._lab, self._few = lab, replace(lab, samples=min(FEWEST, lab.samples))
        self._costs: dict[Hashable, Costs] = {}
        self._states: dict[Hashable, Layer] = {}

    def costs(self, kind: Hashable, alike: Alike) -> dict[int, Costs]:
        """Costs of a task's layers of one kind, by index. WorkloadError where no size fits the
        device."""
        new = kind not in self._costs
        if new:
            self._costs[kind] = self._measured(alike.cases[0])
        checks = alike.cases[1:] if new else alike.cases[-1:]
        self.layers += len(alike.layers)
        if all(self._agrees(cases, self._costs[kind]) for cases in checks):
            self.measured += new
            self.checked += len(checks)
            return dict.fromkeys(alike.layers, self._costs[kind])
        self.measured += len(alike.layers)
        return {
            index: self._measured([replace(case, layer=layer) for case in alike.cases[-1]])
            for index, layer in alike.layers.items()
        }

    def state(self, case: Case, owned: Sequence[nn.Parameter]) -> Layer:
        """`layer_state` of these parameters, measured once for equal updates."""
        kind = _update_kind(case, owned)
        if kind not in self._states:
            self._states[kind] = layer_state(case, owned, self._lab)
        return self._states[kind]

    def __str__(self) -> str:
        """The numbers of layers measured, checked and copied, in words."""
        copied = self.layers - self.measured - self.checked
        return (
            f"{self.measured} of {self.layers} layers measured, {self.checked} like them checked, "
            f"{copied} taken to cost the same"
        )

    def _measured(self, cases: Sequence[Case]) -> Costs:
        """In full, at the sizes that fit the device."""
        costs: list[LayerCost] = []
        for case in cases:
            try:
                costs.append(layer_cost(case, self._lab))
            except torch.OutOfMemoryError:
                break
        if not costs:
            raise WorkloadError("does not fit the device with the smallest microbatch")
        return tuple(costs)

    def _agrees(self, cases: Sequence[Case], known: Costs) -> bool:
        """True if a layer costs as much as is known of its kind: at the largest size, with few
        samples or else with all."""
        case = cases[len(known) - 1]
        try:
            return any(agree(layer_cost(case, lab), known[-1]) for lab in (self._few, self._lab))
        except torch.OutOfMemoryError:
            return False


def agree(one: LayerCost, other: LayerCost) -> bool:
    """True if two measurements may be of layers that cost the same."""
    pairs = [(one.forward, other.forward), (one.recompute_backward, other.recompute_backward)]
    if one.pack_backward and other.pack_backward:
        pairs.append((one.pack_backward, other.pack_backward))
    return _bytes(one) == _bytes(other) and all(_near(a, b) and _near(b, a) for a, b in pairs)


def _bytes(cost: LayerCost) -> tuple[int | None, ...]:
    peaks = cost.forward_peak_bytes, cost.backward_peak_bytes
    left = cost.offload_bytes, cost.left_bytes, cost.kept_grad_bytes, cost.input_peak_bytes
    return cost.in_bytes, cost.out_bytes, cost.saved_bytes, *peaks, *left


def _near(one: Time, other: Time) -> bool:
    return one.p10_us <= _FACTOR * other.p90_us + _NOISE_US


def _update_kind(case: Case, owned: Sequence[nn.Parameter]) -> Hashable:
    """The key of an update's cost: shapes, precision, and the optimizer's settings for them,
    of which numbers count as zero or not."""
    task = case.task
    groups: Hashable = None
    noted = needs_norms(task.precision, task.clip)
    if any(p.requires_grad for p in owned):
        recipe = replace(case.recipe or Recipe(task.optimizer), scheduler=None)
        made, _ = recipe.make(owned, owned)
        groups = type(made), _told(made.param_groups)
    return _told(list(owned)), task.precision, noted, groups


def _settings(module: nn.Module) -> str:
    with suppress(Exception):  # whatever a user's own raises
        return str(module.extra_repr())
    return ""


def _told(value: Any) -> Hashable:
    """The part of a value that may decide how long it takes to go through it; for a number with a
    fraction, True if it is not zero."""
    match value:
        case Tensor():
            stride = value.stride() if value.layout == torch.strided else ()
            return value.dtype, tuple(value.shape), stride, value.requires_grad
        case list() | tuple():
            return tuple(map(_told, value))
        case dict():
            return tuple((key, _told(item)) for key, item in value.items())
        case float() | complex():
            return bool(value)
        case None | bool() | int() | str() | torch.dtype():
            return value
    return type(value).__name__
