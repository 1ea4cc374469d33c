"""The picture of actual over predicted times."""

import pytest
from support import timetables

from planner.views import ratio_plot
from plans.schema import parse_id


def test_every_compute_op_is_a_dot_at_its_ratio() -> None:
    plan = timetables.plan(rounds=2)
    log = timetables.log(plan, percent=150)
    ax = ratio_plot.draw(plan, log)
    dots = {line.get_label(): len(line.get_ydata()) for line in ax.lines}
    for kind, name in (("F", "forward"), ("B", "backward"), ("U", "update")):
        assert dots[name] == sum(parse_id(op.op).kind == kind for op in log.ops)
        ratios = next(line for line in ax.lines if line.get_label() == name).get_ydata()
        assert list(ratios) == pytest.approx([1.5] * dots[name], rel=0.01)
