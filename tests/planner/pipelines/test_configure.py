"""Plans in a layout and an order that were asked for, and why there is none."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
from msgspec import structs
from support import piped, synthetic
from support.cli import planner_cli, refused

from planner import Infeasible, Problem, build
from planner.inputs import Effort, parse_layout
from planner.inputs.layout import OrderName
from planner.lowering import PipelineStrategy
from planner.pipelines import ModeProgram, best_pipeline, fitting
from planner.pipelines.modes import Chosen
from planner.pipelines.ranking import Estimate, rank_ways
from planner.views.layout import stages
from plans.schema import Plan
from profiles.codec import pretty
from profiles.errors import FormatError
from profiles.schema import Task

pytestmark = pytest.mark.usefixtures("quick")

ROOM = 1 << 26


def whole() -> Task:
    return synthetic.task("a", layers=6, batch=4, param_bytes=1 << 19, forward_us=400)


def task() -> Task:
    return piped.halving(whole())


def asked(
    layout: str | None, order: OrderName = "auto", room: int = ROOM, host: int | None = None
) -> Problem:
    shape = parse_layout(layout) if layout else None
    profile = synthetic.profile(task(), usable_bytes=room)
    count = shape.devices if shape else 2
    one = Problem.of(profile, devices=count, device_bytes=room, host_bytes=host)
    return replace(one, layout=shape, order=order)


def built(problem: Problem) -> Plan:
    return build(problem, profile_sha256="0" * 64)


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "interleaved", "breadth", "zero-bubble"])
def test_a_plan_is_in_the_layout_and_order_asked_for(order: OrderName) -> None:
    plan = built(asked("2x1", order))
    told = plan.solver.alternatives
    assert {(one.layout, one.order, one.devices) for one in told} == {("2x1", order, 2)}
    assert [one.why_not for one in told].count("") == 1
    assert plan.programs[0].devices == 2


def test_of_all_orders_the_shortest_is_kept() -> None:
    """No other order alone gives a shorter round than all together."""
    free = built(asked("2x1")).programs[0].period_us
    each = ("gpipe", "1f1b", "zero-bubble")
    assert free <= min(built(asked("2x1", order)).programs[0].period_us for order in each)  # type: ignore[arg-type]


def test_stages_have_as_many_replicas_as_they_need() -> None:
    """A front that takes three times the rear, whose parameters are too large to be sent, gets
    three of four devices; even layouts take longer."""
    one = replace(asked("4x1"), layout=None)
    (mine,) = one.tasks
    rear = structs.replace(mine.layers[0], param_bytes=1 << 23, grad_bytes=1 << 23)
    front = [structs.replace(mine.layers[0], param_bytes=1 << 10, grad_bytes=1 << 10)] * 3
    shaped = one.alike(tasks=(structs.replace(mine, layers=(*front, rear)),))
    way, *even = (
        best_pipeline(
            (shaped.kinds[0], shaped.tasks[0], shaped.host_bytes), 4, Effort(1e12, 0), layout=own
        )
        for own in (None, *map(parse_layout, ("4x1", "2x2", "1x4")))
    )
    assert str(way.strategy.layout) == "3,1"
    assert way.program.period_us < min(one.program.period_us for one in even)


def test_shards_find_places_of_their_own() -> None:
    """Five equal layers and five microbatches on two devices: the third layer is on both, which no
    layout can. The plan is proven, and tells what it is."""
    mine = synthetic.task(
        "a",
        layers=5,
        batch=5,
        param_bytes=64,
        boundary_bytes=64,
        forward_us=25_000,
        heterogeneous=False,
    )
    profile = synthetic.profile(mine, usable_bytes=ROOM)
    plan = built(Problem.of(profile, devices=2, device_bytes=ROOM, host_bytes=None))
    (taken,) = (one for one in plan.solver.alternatives if not one.why_not)
    assert (taken.layout, taken.order) == ("mixed", "placed")
    others = [one for one in plan.solver.alternatives if one.why_not and one.period_us]
    assert taken.bound_us <= taken.period_us < min(one.period_us for one in others)
    assert any(len(stage.devices) == 2 for stage in stages(plan.programs[0], "a"))


def test_the_same_problem_gives_the_same_plan() -> None:
    one, two = (built(asked("2,1", "zero-bubble", 6 << 20)) for _ in "ab")
    assert pretty(one) == pretty(two)


@pytest.mark.parametrize("layout", ["1x2", "2,1"])
def test_the_memory_that_a_refusal_names_is_enough(layout: str) -> None:
    """On half as much there is no plan either, and the same is named."""
    with pytest.raises(Infeasible) as small:
        built(asked(layout, room=1))
    least = small.value.smallest
    assert f"smallest --device-memory that would do: {least}" in str(small.value)
    built(asked(layout, room=least))
    with pytest.raises(Infeasible) as again:
        built(asked(layout, room=least // 2))
    assert again.value.smallest == least


def test_a_host_too_small_is_named() -> None:
    with pytest.raises(Infeasible) as small:
        built(asked("2x1", host=1 << 20))
    assert small.value.resource == "host"
    assert small.value.smallest > 1 << 20
    built(asked("2x1", host=small.value.smallest))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--layout", "7x1"), "layout 7x1 needs 7 stages, but its 6 layers can be cut into 6 at"),
        (("--layout", "1x8"), "needs 8 microbatches, but a batch of 4 has 4 at most, of 1 each"),
        (("--layout", "1x2", "--microbatch", 4), "a batch of 4 has 1 at most, of 4 each"),
        (("--layout", "1x4", "--order", "interleaved"), "has one stage, so there are none to take"),
        (("--layout", "4x1", "--order", "interleaved"), "in order interleaved needs 8 stages"),
        (("--layout", "9x1"), "layout 9x1 needs 9 devices of one kind but there are 8"),
    ],
)
def test_what_cannot_be_is_said(
    options: tuple[str | int, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.json").write_bytes(pretty(synthetic.profile(task(), usable_bytes=ROOM)))
    build = ("build", "p.json", "-o", "x.json", "--devices", 8)
    refused(planner_cli(*build, *options), 3, told)


def test_layers_that_share_parameters_are_said_to_stay_together() -> None:
    mine = structs.replace(task(), ties=((0, 5),))
    with pytest.raises(Infeasible, match="6 layers, some of which share parameters, can be cut"):
        built(asked("2x1").alike(tasks=(mine,)))


def test_an_order_is_what_it_is_called() -> None:
    """Backwards are split in zero-bubble, or there is none; one device has no order of passes."""
    two = asked("2x1").alike(tasks=(whole(),))
    with pytest.raises(Infeasible, match="has no backward that order zero-bubble could split"):
        built(replace(two, order="zero-bubble"))
    assert "zero-bubble" not in {one.order for one in built(two).solver.alternatives}
    with pytest.raises(FormatError, match="--order 1f1b is one of passes on several devices"):
        built(asked("1x1", "1f1b"))


def test_replicas_of_what_one_device_has_to_run_are_refused() -> None:
    one = asked("1x2")
    (mine,) = one.tasks
    layers = (*mine.layers[:2], structs.replace(mine.layers[2], in_turn=True), *mine.layers[3:])
    with pytest.raises(Infeasible, match="layout 1x2 has replicas of layer2, whose forward"):
        built(one.alike(tasks=(structs.replace(mine, layers=layers),)))


@dataclass(frozen=True)
class Modes:
    """A program whose rounds take more than there is with the first modes."""

    us: tuple[int, ...]
    room: int = 1 << 20
    links: None = None

    @property
    def device_bytes(self) -> int:
        return self.room + (len(self.us) > 1)

    @property
    def period_us(self) -> int:
        return self.us[0]


def test_rounds_a_little_longer_than_others_are_made_with_less_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may turn out shorter; those that are much longer are left."""

    def chosen(programs: Sequence[Modes], *_: object, least: bool) -> Chosen:
        return Chosen((cast("PipelineStrategy", programs[0]),), 0)

    monkeypatch.setattr(fitting, "chosen_for", chosen)
    monkeypatch.setattr(fitting, "PipelineRound", lambda strategy, *_: strategy)
    monkeypatch.setattr(fitting, "smaller", lambda program, *_: replace(program, us=program.us[1:]))

    def found(*us: int) -> int | str:
        program, effort = cast("ModeProgram", Modes(us)), Effort(9e9, 0)
        made = fitting.fitted(program, Modes(us).room, 1000, effort)
        return made if isinstance(made, str) else made.period_us

    assert found(1020, 950) == 950
    assert found(1050, 950) == "longer with less memory"


class Ticking(Effort):
    """Time passes by estimates."""

    asked = 0

    @property
    def left(self) -> float:
        return self.deadline - type(self).asked


@dataclass(frozen=True)
class Rounds:
    """As long as they turned out."""

    period_us: int
    entries: Sequence[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rising:
    """A way whose rounds seem longer with each of four estimates, each of which takes a while."""

    us: int

    def estimates(self) -> Iterator[Estimate]:
        for level in range(4):
            Ticking.asked += level > 0
            yield Estimate(self.us + 100 * level, self.us, "is longer", last=level == 3)

    def made(self, shortest: int) -> Rounds:
        return Rounds(self.us + 300)


def rounds(ways: int, time: int) -> list[int]:
    """The periods of the rounds that are made of so many ways in so much time."""
    Ticking.asked = 0
    found = rank_ways([Rising(n) for n in range(ways)], Ticking(time, 0))
    return [made.period_us for _, made in found if not isinstance(made, str)]


def test_the_shortest_is_made_where_there_is_time_for_all_estimates() -> None:
    assert min(rounds(5, 1000)) == 300


def test_the_most_promising_way_gets_rounds_where_time_ends_before_most_estimates() -> None:
    """Else all would be known by their bounds, and only the one that needs least memory made."""
    for time in (8, 20, 40):
        assert min(rounds(20, time)) == 300


def test_one_way_gets_rounds_where_time_ends_before_any_has() -> None:
    assert rounds(20, 2) == [300]
