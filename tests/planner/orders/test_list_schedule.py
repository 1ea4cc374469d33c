"""The list schedule and its rules."""

from support.order_check import check, spans

from planner.orders import Cost, Pipeline, zero_bubble
from planner.orders.list_schedule import ListSchedule, Rule

UNIT = Cost(1, 1, 1, 2, 1)
PLACES = ((0,), (1,))


def _line(rule: Rule, limit: int | None = None, split: bool = True) -> list[str]:
    """The first device's order of three microbatches on two stages."""
    schedule = ListSchedule(Pipeline.alike([UNIT] * 2, 2, 3, limit), PLACES, split)
    order = schedule.network.order(schedule.lines(rule))
    return [f"{p.kind}{p.microbatch}" for p in order[0]]


def _rule(depth: int = 3, fill: int = 100, drain: int = 100, eager: bool = False) -> Rule:
    return Rule((depth,) * 2, (fill,) * 2, (drain,) * 2, (eager,) * 2)


def test_depth_limits_forwards_in_flight() -> None:
    """A third forward would fit and has arrived."""
    assert _line(_rule(depth=3))[:4] == ["F0", "F1", "F2", "I0"]
    assert _line(_rule(depth=2))[:4] == ["F0", "F1", "I0", "F2"]


def test_weights_come_first_where_memory_stops_a_forward() -> None:
    """Two in flight hold 4; after I0 one unit is missing for F2, which W0 gives back, although the
    gap is too short for the rule."""
    assert _line(_rule(fill=1000), limit=4)[:4] == ["F0", "F1", "I0", "W0"]
    assert _line(_rule(depth=2, fill=1000))[:4] == ["F0", "F1", "I0", "F2"]


def test_eager_devices_take_forwards_before_backwards() -> None:
    """On the last stage the next forward is there when the backward is."""
    schedule = ListSchedule(Pipeline.alike([UNIT] * 2, 2, 3), PLACES)
    for eager, second in ((False, "I0"), (True, "F1")):
        order = schedule.network.order(schedule.lines(_rule(eager=eager)))
        assert f"{order[1][1].kind}{order[1][1].microbatch}" == second


def test_without_a_split_backwards_are_whole() -> None:
    """B instead of I and W."""
    assert _line(_rule(), split=False) == ["F0", "F1", "F2", "B0", "B1", "B2"]


def test_a_gap_shorter_than_a_weight_is_filled_only_if_the_rule_says_so() -> None:
    """W takes 4, and the next backward comes after 1."""
    schedule = ListSchedule(Pipeline.alike([Cost(1, 3, 4, 2, 1)] * 2, 2, 2), PLACES)
    kinds = {}
    for drain in (20, 50):
        order = schedule.network.order(schedule.lines(_rule(drain=drain)))
        kinds[drain] = "".join(item.kind for item in order[0])
    assert kinds == {20: "FFIWIW", 50: "FFIIWW"}


def test_bubbles_vanish_with_twice_the_memory() -> None:
    """ZB-H2's claim: with 2p - 1 in flight every device is busy from its first pass to its last."""
    pipeline = Pipeline.alike([UNIT] * 4, 4, 12, limit=2 * 8)
    order = zero_bubble(pipeline, tuple((s,) for s in range(4)))
    check(pipeline, order)
    assert spans(pipeline, order) == (36,) * 4


def test_many_microbatches_are_ordered_by_the_rule_that_is_best_for_fewer() -> None:
    """No bubble in 200 microbatches on two stages."""
    pipeline = Pipeline.alike([UNIT] * 2, 2, 200, limit=8)
    order = zero_bubble(pipeline, PLACES)
    check(pipeline, order)
    assert max(spans(pipeline, order)) == 600
