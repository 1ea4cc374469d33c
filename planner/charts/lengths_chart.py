"""The lengths of tasks' samples as pictures: a row of four for each task."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.views import Counts, Shape, classes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAMPLES, _TOKENS, _SQUARES = "#9DB8D9", "#2F5D8C", "#C98B2B"
_POINTS = 2000  # of a curve


def figure(shapes: Sequence[Shape]) -> "Figure":
    """A new figure, unknown to pyplot."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(16, 3.6 * len(shapes)), layout="constrained")
    for shape, row in zip(shapes, made.subplots(len(shapes), 4, squeeze=False), strict=True):
        draw_histogram(shape, row[0])
        draw_cumulative(shape, row[1])
        draw_longest(shape, row[2])
        draw_waste(shape, row[3])
    return made


def draw_histogram(shape: Shape, ax: "Axes") -> None:
    """Parts of samples and of their tokens by class of lengths."""
    told = classes(shape.samples)
    at = np.arange(len(told))
    ax.bar(at - 0.2, [row[2] for row in told], 0.4, color=_SAMPLES, label="samples")
    ax.bar(at + 0.2, [row[3] for row in told], 0.4, color=_TOKENS, label="tokens")
    ax.set_xticks(at, [str(row[0]) for row in told], rotation=60, ha="right", fontsize=7)
    ax.set_xlabel("tokens from here to the next power of two")
    ax.set_title(shape.task.name, loc="left", fontsize=9.5)
    ax.legend(fontsize=7.5, frameon=False)


def draw_cumulative(shape: Shape, ax: "Axes") -> None:
    """The part of samples, tokens and squares of lengths in samples up to a length."""
    of = shape.samples
    kinds = (("samples", _SAMPLES), ("tokens", _TOKENS), ("squares", _SQUARES))
    for power, (label, color) in enumerate(kinds):
        weights = of.counts * of.values.astype(float) ** power
        _curve(ax, of, weights.cumsum() / max(weights.sum(), 1), label, color)
    ax.set_xlabel("tokens of a sample")
    ax.set_ylabel("part in samples up to it")
    ax.legend(fontsize=7.5, frameon=False)


def draw_longest(shape: Shape, ax: "Axes") -> None:
    """The part of steps whose longest sample is no longer."""
    sums = shape.longest.counts.cumsum()
    _curve(ax, shape.longest, sums / sums[-1], "steps", _TOKENS)
    ax.set_xlabel(f"tokens of the longest of {shape.task.batch} samples")
    ax.set_ylabel("part of the steps up to it")


def _curve(
    ax: "Axes",
    of: Counts,
    parts: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    label: str,
    color: str,
) -> None:
    """Parts over lengths, drawn at as many as can be told apart."""
    places = np.unique(np.geomspace(1, len(parts), _POINTS).astype(int)) - 1
    ax.step(np.maximum(of.values[places], 1), parts[places], where="post", label=label, color=color)
    ax.set_xscale("log", base=2)
    ax.set_ylim(0, 1.02)


def draw_waste(shape: Shape, ax: "Axes") -> None:
    """Compute of each way over that without padding, and the part of its tokens that is padding."""
    at = np.arange(len(shape.wastes))
    ax.barh(at, [one.compute for one in shape.wastes], color=_TOKENS, height=0.5)
    for place, one in zip(at, shape.wastes, strict=True):
        ax.text(0, place - 0.28, f" {one.way}: {one.padding:.0%} padding", fontsize=7.5)
    ax.axvline(1, color="#222222", lw=0.8, ls="--")
    ax.set_ylim(len(shape.wastes) - 0.6, -0.6)
    ax.set_yticks([])
    ax.set_xlabel("compute over that without padding")
    ax.set_title(f"microbatches of {shape.room} tokens", loc="left", fontsize=9.5)
