"""The steps of samples with lengths as a picture: how long each is, over its bound."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pairs = Sequence[tuple[int, int]]
"""The time of every step, and its bound."""


def figure(tasks: Mapping[str, Pairs]) -> "Figure":
    """A new figure, unknown to pyplot, with a panel for each task."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(10, 3.6 * len(tasks)), layout="constrained")
    panels = made.subplots(len(tasks), squeeze=False)[:, 0]
    for (name, pairs), ax in zip(tasks.items(), panels, strict=True):
        draw(name, pairs, ax)
    return made


def draw(name: str, pairs: Pairs, ax: "Axes") -> None:
    """Bars of the steps of a task, the largest first."""
    over = np.sort([us / max(bound, 1) for us, bound in pairs])[::-1]
    ax.bar(np.arange(len(over)), over, width=1, color="#2F5D8C")
    ax.axhline(1, color="#222222", lw=0.8, ls="--")
    ax.set_ylim(min(1, over[-1]) * 0.98, over[0] * 1.02)
    ax.set_xlim(-0.5, len(over) - 0.5)
    ax.set_xlabel("steps, sorted")
    ax.set_ylabel("time over the bound")
    ax.set_title(f"{name}: median {np.median(over):.3f}", loc="left", fontsize=9.5)
