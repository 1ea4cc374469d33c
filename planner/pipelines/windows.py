"""The memory of each device of a pipeline, for the program that chooses the modes of all shards.

A window is a pass of a device at which it may hold most: of the passes of one kind and shard the
one with most in flight beside it. There a shard's parameters, gradients and microbatches in flight
are counted, which follows from the order alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.lowering import PipelineStrategy
from planner.orders import Pass

Counts = NDArray[np.int64]


class Held(NamedTuple):
    """A shard's part of a device in a window. flying: microbatches between forward and backward;
    half_done: those of them between I and W; near: a run of its passes is under way, or next to one
    that is; learns: gradients are there."""

    shard: int
    flying: int
    half_done: int
    near: bool
    learns: bool


@dataclass(frozen=True)
class Window:
    """A device during one of its passes."""

    device: int
    now: Pass
    held: tuple[Held, ...]


def windows(strategy: PipelineStrategy) -> Iterator[Window]:
    """The windows of all devices; of replicas, which hold the same, they are found once."""
    known: dict[object, list[tuple[int, tuple[Held, ...]]]] = {}
    for device, passes in enumerate(strategy.order):
        alike = id(strategy.on[device]), tuple((one.kind, one.shard) for one in passes)
        if passes and alike not in known:
            known[alike] = list(_windows(strategy, device, passes))
        for at, held in known.get(alike, ()):
            yield Window(device, passes[at], held)


def _windows(
    strategy: PipelineStrategy, device: int, passes: Sequence[Pass]
) -> Iterator[tuple[int, tuple[Held, ...]]]:
    """The places of a device's windows among its passes, and what is held there."""
    mine, shards = sorted({one.shard for one in passes}), strategy.on[device]
    flying = {k: _flying(strategy, passes, k) for k in mine}
    half_done = {k: _between(passes, k, "I", "W") for k in mine}
    near, learns = _near(passes), {k: _learns(passes, k) for k in mine}
    weights = [
        sum(flying[k] * shards[k].saved_bytes for k in mine),
        sum(half_done[k] * (shards[k].left_bytes or 0) for k in mine),
        sum(flying[k] * shards[k].in_bytes for k in mine),
        sum(learns[k] * shards[k].grad_bytes for k in mine)
        + np.array([sum(shards[k].param_bytes for k in here) for here in near]),
    ]
    kinds: dict[str, list[int]] = {}
    for at, one in enumerate(passes):
        kinds.setdefault(one.kind, []).append(at)
    for places in kinds.values():
        most = {max(places, key=lambda at, w=weight: w[at]) for weight in weights}  # type: ignore[misc]
        for at in sorted({places[0], places[-1]} | most):
            held = (
                Held(k, int(flying[k][at]), int(half_done[k][at]), k in near[at], bool(made[at]))
                for k, made in learns.items()
            )
            yield at, tuple(held)


def _flying(strategy: PipelineStrategy, passes: Sequence[Pass], k: int) -> Counts:
    """Microbatches of a shard in flight at every pass."""
    back, end = ("I", "W") if k in strategy.halved else ("B", "B")
    begin = "F" if k < strategy.last else back
    return _between(passes, k, begin, end)


def _between(passes: Sequence[Pass], k: int, begin: str, end: str) -> Counts:
    """Microbatches of a shard from passes of one kind to those of another, at every pass."""
    here = [one.shard == k for one in passes]
    begun = np.cumsum([h and p.kind == begin for h, p in zip(here, passes, strict=True)])
    ended = np.cumsum([h and p.kind == end for h, p in zip(here, passes, strict=True)])
    return np.asarray(begun - np.concatenate([[0], ended[:-1]]))


def _near(passes: Sequence[Pass]) -> list[frozenset[int]]:
    """For every pass the shards of its run, of the one before and of the one behind."""
    runs = [(k, len(list(group))) for k, group in groupby(passes, key=lambda one: one.shard)]
    found: list[frozenset[int]] = []
    for at, (_, count) in enumerate(runs):
        around = runs[max(0, at - 1) : at + 2]
        found += [frozenset(k for k, _ in around)] * count
    return found


def _learns(passes: Sequence[Pass], k: int) -> Counts:
    """The passes from a shard's first backward to the one behind its last."""
    places = [at for at, one in enumerate(passes) if one.shard == k and one.kind in "BW"]
    made = np.zeros(len(passes), np.int64)
    if places:
        made[places[0] : places[-1] + 2] = 1
    return made


def loads(strategy: PipelineStrategy) -> dict[tuple[int, int], int]:
    """The loads of a streamed shard's parameters in a round, by device and shard."""
    found: dict[tuple[int, int], int] = {}
    for device, passes in enumerate(strategy.order):
        for k, _ in groupby(passes, key=lambda one: one.shard):
            found[device, k] = found.get((device, k), 0) + 1
    return found
