"""What a book would train on machines that come and go: devices over time, and work against what
changes that cost nothing would let it train."""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from planner.charts.panels import time_axis
from planner.surviving import Stretch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_THERE, _TRAIN, _LOST = "#222222", "#4682CD", "#C8402F"

Line = tuple[list[float], list[float]]
"""The x and the y of its points."""


def figure(parts: Sequence[Stretch], title: str) -> "Figure":
    """Both panels on a figure of their own, unknown to pyplot."""
    from matplotlib.figure import Figure  # takes a second to import

    made, window = Figure(figsize=(13, 7), layout="constrained"), (parts[0].at_us, parts[-1].end_us)
    upper, lower = made.subplots(2, sharex=True, height_ratios=(2, 3))
    upper.set_title(title, loc="left", fontsize=9.5)
    devices(upper, parts)
    work(lower, parts)
    lower.set_xlim(*window)
    time_axis(lower, window, "")
    return made


def devices(ax: "Axes", parts: Sequence[Stretch]) -> "Axes":
    """The devices that are there, and those that train: none while a start lasts."""
    edges = [*(part.at_us for part in parts), parts[-1].end_us]
    ax.stairs([part.devices for part in parts], edges, baseline=None, color=_THERE, label="there")
    ax.fill_between(*_training(parts), color=_TRAIN, alpha=0.6, lw=0, label="training")
    ax.set_ylabel("devices")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left", fontsize=8)
    return ax


def work(ax: "Axes", parts: Sequence[Stretch]) -> "Axes":
    """Work done, in parts of the training, with a mark where some was lost with devices."""
    ends = [part.end_us for part in parts]
    free = [0.0, *accumulate(part.free for part in parts)]
    ax.plot([parts[0].at_us, *ends], free, "--", color=_THERE, lw=1, label="with free changes")
    x, y = trained(parts)
    ax.plot(x, y, color=_TRAIN, lw=1.5, label="trained")
    lost = [y[3 * place + 1] for place, part in enumerate(parts) if part.loss]
    at = [part.at_us for part in parts if part.loss]
    ax.plot(at, lost, "x", color=_LOST, label="devices lost")
    ax.set_ylabel("of the training")
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left", fontsize=8)
    return ax


def trained(parts: Sequence[Stretch]) -> Line:
    """The work that is left at three points of each stretch: where it begins, behind what is lost
    there, where training begins, and where it ends."""
    x, y = [float(parts[0].at_us)], [0.0]
    for part in parts:
        ready_us = min(max(part.at_us, part.ready_us), part.end_us)
        behind = y[-1] - part.lost
        x += [part.at_us, ready_us, part.end_us]
        y += [behind, behind, behind + part.trained]
    return x, y


def _training(parts: Sequence[Stretch]) -> Line:
    """The devices that train, up and down."""
    found = list(
        chain.from_iterable(
            ((begins, 0.0), (begins, count), (part.end_us, count), (part.end_us, 0.0))
            for part in parts
            for begins in [min(max(part.at_us, part.ready_us), part.end_us)]
            for count in [float(part.pace.devices) if part.pace else 0.0]
        )
    )
    x, y = zip(*found, strict=True)
    return list(x), list(y)
