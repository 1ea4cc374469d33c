"""Made-up tasks that train a little of their own on a frozen base that they have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from msgspec import structs
from support import synthetic
from support.searches import effort

from planner import builder
from planner.bases import Grouping, joined, parted
from planner.inputs import Problem
from planner.search import starts
from planner.shards import cut_points
from plans.schema import Plan
from profiles.codec import align, sha256
from profiles.schema import Layer, Task


def adapters(count: int, *, trained: int = 8, base: str = "base", **more: Any) -> list[Task]:
    """Tasks t0, t1, ... of equal layers, of which the n-th trains a `trained`-th, and t1, t3, ...
    half of that; nothing in every third layer."""
    alike = synthetic.task("alike", **more)
    return [
        structs.replace(
            alike,
            name=f"t{n}",
            base=sha256(base.encode()),
            layers=tuple(
                _part(layer, 0 if at % 3 == 2 else trained * (1 + n % 2))
                for at, layer in enumerate(alike.layers)
            ),
        )
        for n in range(count)
    ]


def grouped(problem: Problem, grouping: Grouping) -> Plan:
    """The plan in which tasks train together so; it is not proven."""
    made, _ = builder._fitted(joined(problem, grouping), "gantry", effort(), 1)
    return parted(problem, grouping, made)


@contextmanager
def cut_apart(name: str) -> Iterator[None]:
    """The task of this name is cut behind even layers alone, others behind odd ones."""

    def points(task: Task, *, apart: bool = False) -> list[int]:
        found = cut_points(task, apart=apart)
        return [0, *found[1 + (task.name == name) : -1 : 2], found[-1]]

    with mock.patch.object(starts, "cut_points", points):
        yield


def _part(layer: Layer, share: int) -> Layer:
    """The layer where only that share of it is trained; 0: nothing."""
    own = align(layer.param_bytes // share) if share else 0
    frozen = layer.param_bytes
    nothing = synthetic.time_us(0)
    return structs.replace(
        layer,
        param_bytes=frozen + own,
        grad_bytes=own,
        state_bytes=2 * own,
        update_device=layer.update_device if own else nothing,
        update_host=layer.update_host if own else nothing,
        norm=layer.norm if own else None,
        norm_peak_bytes=layer.norm_peak_bytes if own else 0,
    )
