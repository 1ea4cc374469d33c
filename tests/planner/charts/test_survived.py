"""The picture of what a book would train on machines that come and go."""

from support.pictures import words

from planner.charts import survived
from planner.surviving import Pace, outcome, stretches

PARTS = stretches([Pace(2, 1.0, 5), Pace(3, 1.5, 4)], [(0, 3), (10, 2), (20, 4)], 30, 1)


def test_devices_and_work_are_drawn_over_time() -> None:
    """Work ends at what is trained, below the bound, and falls where devices are lost, which has a
    mark."""
    upper, lower = survived.figure(PARTS, "of x").axes
    assert upper.get_title(loc="left") == "of x"
    found = outcome(PARTS)
    lines = {line.get_label(): line.get_xydata().tolist() for line in lower.lines}
    assert lines["with free changes"][-1] == [30, found.free]
    assert lines["trained"][-1] == [30, found.trained]
    assert lines["devices lost"] == [[10, 15 - PARTS[1].lost]]
    assert [10, 15] in lines["trained"]
    assert words(upper.get_legend().get_texts()) == ["there", "training"]


def test_no_device_trains_while_a_start_lasts() -> None:
    """Four are there in the end, of which three train."""
    (upper, _) = survived.figure(PARTS, "").axes
    (area,) = upper.collections
    points = {(x, y) for x, y in area.get_paths()[0].vertices.tolist()}
    assert {(0, 3), (10, 3), (11, 2), (20, 2), (21, 3), (30, 3)} <= points
    (stairs,) = upper.patches
    assert stairs.get_data().values.tolist() == [3, 2, 4]
