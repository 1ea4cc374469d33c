"""Every compute op of a run as a dot: actual over predicted time, over the time it began."""

from typing import TYPE_CHECKING

from planner.views.axes import panels
from plans.runlog import RunLog
from plans.schema import Plan, parse_id
from plans.trace import happened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KINDS = {"F": "forward", "B": "backward", "U": "update"}
_TOP = 2.5  # ratios beyond are drawn at the edge


def draw(plan: Plan, log: RunLog, ax: "Axes | None" = None) -> "Axes":
    """A dot per op, a colour per kind, on `ax` or on a new figure; metered ops are left out.

    FormatError when the log is not of this plan.
    """
    ax = ax or panels([3.0])[1][0]
    dots: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in _KINDS.values()}
    for one in happened(plan, log):
        kind = _KINDS.get(parse_id(one.op.id).kind)
        if kind and one.predicted_us and not one.metered:
            starts, ratios = dots[kind]
            starts.append(one.start_us / 1e6)
            ratios.append(min(_TOP, one.us / one.predicted_us))
    for name, (starts, ratios) in dots.items():
        ax.plot(starts, ratios, ".", markersize=2.5, label=name)
    ax.axhline(1, color="black", lw=0.8)
    ax.set(xlabel="s since the run began", ylabel="actual / predicted", ylim=(0, _TOP))
    ax.legend(markerscale=4, frameon=False, ncols=len(dots))
    return ax
