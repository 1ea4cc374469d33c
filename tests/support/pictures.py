"""What is in a picture: the bars, arrows, texts of its axes."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.quiver import Quiver

from planner.charts import panels
from planner.charts.panels import Panel
from plans.schema import Plan


def drawn(panel: Panel, plan: Plan) -> Axes:
    """A panel by itself."""
    axes: Axes = panels.figure([panel], [task.name for task in plan.tasks]).axes[0]
    return axes


def bars(ax: Axes) -> list[tuple[float, float, float]]:
    """(start, end, lower edge) of every bar, in order of time."""
    found = [
        path.get_extents()
        for artist in ax.collections
        if isinstance(artist, PolyCollection) and not isinstance(artist, Quiver)
        for path in artist.get_paths()
    ]
    return sorted((box.x0, box.x1, box.y0) for box in found)


def arrows(ax: Axes) -> list[tuple[float, float, float, float]]:
    """(x, y) of both ends of every arrow."""
    ends: list[Any] = [
        (x, y, x + u, y + v)
        for artist in ax.collections
        if isinstance(artist, Quiver)
        for x, y, u, v in zip(artist.X, artist.Y, artist.U, artist.V, strict=True)
    ]
    return ends


def words(texts: Any) -> list[str]:
    """Of names of bars, of labels, or of what a legend has."""
    return [text.get_text() for text in texts]
