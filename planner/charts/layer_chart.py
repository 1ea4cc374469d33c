"""A profile for people: its tasks and links in a table, the layers of a task as bars."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from profiles.console import columns
from profiles.schema import Layer, LayerCost, Profile, Task
from profiles.units import show_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Part = tuple[str, Callable[[Layer, LayerCost], int]]  # its colour, and its size

_TIMES: dict[str, Part] = {
    "forward": ("#9DB8D9", lambda _, cost: cost.forward.median_us),
    "backward": ("#2F5D8C", lambda _, cost: cost.backward.median_us),
    "update on device": ("#C98B2B", lambda layer, _: layer.update_device.median_us),
}
_BYTES: dict[str, Part] = {
    "parameters": ("#2F5D8C", lambda layer, _: layer.param_bytes),
    "gradients": ("#9DB8D9", lambda layer, _: layer.grad_bytes),
    "optimizer state": ("#C98B2B", lambda layer, _: layer.state_bytes),
    "saved for backward": ("#7A9E7E", lambda _, cost: cost.saved_bytes),
}
_LABELLED = 24  # layers; of more, every second, third, ... is named


def describe(profile: Profile) -> str:
    """The profile's device, links and tasks, one line each; sums over a task's layers."""
    device = profile.machine.devices[0]
    marks = [m for m in ("estimated" if profile.estimated else "", profile.emulated) if m]
    lines = [
        f"{device.name} ({device.kind}): {show_bytes(device.usable_bytes)}"
        + (f"; times are {' and '.join(marks)}" if marks else ""),
        *(
            f"{link.kind}: {link.alone.bytes_per_s / 1e9:.3g} GB/s alone, "
            f"{link.both.bytes_per_s / 1e9:.3g} GB/s with the other direction busy, "
            f"latency {link.alone.latency_us} us"
            for link in device.links
        ),
        "",
    ]
    head = ("task", "layers", "steps", "batch", "microbatches measured", *list(_BYTES)[:3])
    return "\n".join([*lines, *columns([head, *map(_row, profile.tasks)], numbers=True)])


def _row(task: Task) -> tuple[str, ...]:
    sizes = ", ".join(str(cost.microbatch) for cost in task.layers[0].costs)
    counts = (str(len(task.layers)), str(task.steps), str(task.batch))
    sums = (
        sum(getattr(layer, f"{kind}_bytes") for layer in task.layers)
        for kind in ("param", "grad", "state")
    )
    return (task.name, *counts, sizes, *map(show_bytes, sums))


def draw_times(task: Task, microbatch: int, ax: "Axes") -> None:
    """Median ms of each layer's forward, backward and update, stacked."""
    _bars(ax, task, microbatch, _TIMES, 1_000)
    ax.set_ylabel(f"ms of one microbatch of {microbatch}")


def draw_bytes(task: Task, microbatch: int, ax: "Axes") -> None:
    """MiB of each layer's parameters, gradients, state and saved activations, stacked."""
    _bars(ax, task, microbatch, _BYTES, 1 << 20)
    ax.set_ylabel(f"MiB (saved: one microbatch of {microbatch})")


def _layers(task: Task, microbatch: int) -> list[tuple[Layer, LayerCost]]:
    """Each layer with its costs at that size; ValueError when it was not measured."""
    measured = [cost.microbatch for cost in task.layers[0].costs]
    if microbatch not in measured:
        raise ValueError(f"{task.name}: microbatch {microbatch} was not measured, only {measured}")
    place = measured.index(microbatch)
    return [(layer, layer.costs[place]) for layer in task.layers]


def _bars(ax: "Axes", task: Task, microbatch: int, parts: dict[str, Part], unit: int) -> None:
    """A bar for each layer, of its parts from below."""
    layers = _layers(task, microbatch)
    floor = np.zeros(len(layers))
    for label, (color, size) in parts.items():
        height = np.array([size(*layer) / unit for layer in layers])
        ax.bar(range(len(layers)), height, bottom=floor, color=color, label=label, width=0.85)
        floor += height
    every = -(-len(task.layers) // _LABELLED)
    named = range(0, len(task.layers), every)
    ax.set_xticks(
        named, [f"{k} {task.layers[k].name}" for k in named], rotation=60, ha="right", fontsize=7
    )
    ax.set_title(f"{task.name}: {len(task.layers)} layers", loc="left", fontsize=9.5)
    ax.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),  # above the bars
        ncols=len(parts),
        fontsize=7.5,
        frameon=False,
        handlelength=1,
        columnspacing=1,
    )


def draw_microbatches(task: Task, ax: "Axes") -> None:
    """Compute per sample (forward and backward of all layers, ms) over microbatch size; in the
    labels, the bytes that one microbatch keeps for its backward."""
    sizes = [cost.microbatch for cost in task.layers[0].costs]
    labels, heights = [], []
    for size in sizes:
        costs = [cost for _, cost in _layers(task, size)]
        busy = sum(cost.forward.median_us + cost.backward.median_us for cost in costs)
        heights.append(busy / size / 1_000)
        labels.append(f"{size}\n{show_bytes(sum(cost.saved_bytes for cost in costs))}")
    ax.bar(range(len(sizes)), heights, color=_TIMES["backward"][0], width=0.6)
    ax.set_xticks(range(len(sizes)), labels, fontsize=8)
    ax.set_xlabel("microbatch, and what it keeps for its backward")
    ax.set_ylabel("ms of compute per sample")
    ax.set_title(task.name, loc="left", fontsize=9.5)
