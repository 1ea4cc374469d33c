"""Options and layouts as they are written; tasks that go on as they began."""

from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, succeeded
from support.texts import text_task

import plans
import profiles
from planner import Options, build, read_problem
from planner.inputs import Layout, Nodes, layouts, parse_layout, parse_nodes, side_by_side
from planner.inputs.options import _FLAGS
from planner.inputs.remaining import Asked, after
from planner.shards import Links
from plans.additions import Addition
from plans.runlog import CheckpointRecord, Header, RunLog
from plans.timing import duration_us
from profiles.errors import FormatError
from profiles.schema import Link, Rate

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.parametrize(
    ("text", "replicas", "shown"),
    [
        ("2x2", (2, 2), "2x2"),
        ("3,1", (3, 1), "3,1"),
        (" 1x4 ", (4,), "1x4"),
        ("4", (4,), "1x4"),
        ("2,2,2", (2, 2, 2), "3x2"),
        ("1+2", (1, 1), "2+1"),
    ],
)
def test_a_layout_is_read_and_shown(text: str, replicas: tuple[int, ...], shown: str) -> None:
    """Depth x replicas, the replicas of each stage, or the stages of pipelines side by side."""
    layout = parse_layout(text)
    assert (layout.pipelines[0], str(layout)) == (replicas, shown)
    assert parse_layout(shown) == layout


NO_LAYOUTS = "x 2x x2 0x2 2x0 3, -1 2x2x2 1.5 ² 999999999 99999x2 2+ 2+0"


@pytest.mark.parametrize("text", ["", *NO_LAYOUTS.split()])
def test_what_is_no_layout_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no layout|are the most"):
        parse_layout(text)


def test_devices_are_numbered_stage_by_stage() -> None:
    """Every device belongs to one stage; the deepest pipeline has the first ones."""
    assert Layout(((3, 1, 2),)).stages == (((0, 1, 2), (3,), (4, 5)),)
    assert parse_layout("1+2").stages == (((0,), (1,)), ((2,),))


def test_devices_are_divided_in_every_way() -> None:
    """All partitions of 4 into pipelines, the deepest first."""
    assert [str(one) for one in side_by_side(4)] == ["4x1", "3+1", "2+2", "2+1+1", "1+1+1+1"]


def test_all_even_layouts_come_once_the_deepest_first() -> None:
    even = [str(one) for one in layouts(12) if one.even]
    assert even == ["12x1", "6x2", "4x3", "3x4", "2x6", "1x12"]


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
def test_few_devices_have_every_uneven_layout_of_up_to_four_stages(devices: int) -> None:
    every = (
        one
        for depth in range(2, 5)
        for one in product(range(1, devices + 1), repeat=depth)
        if sum(one) == devices and len(set(one)) > 1
    )
    found = [one.replicas for one in layouts(devices) if not one.even]
    assert sorted(found) == sorted(every)


def test_many_devices_have_no_more_uneven_layouts() -> None:
    for devices in (16, 30, 1000):
        found = [one for one in layouts(devices) if not one.even]
        assert {one.devices for one in found} == {devices}
        assert len(set(found)) == len(found) <= sum(not one.even for one in layouts(8)) + 4


def test_every_option_is_a_flag() -> None:
    assert set(_FLAGS) == {one.name for one in fields(Options)}


def test_options_are_read_from_text() -> None:
    said: dict[str, Any] = {"layout": "2x1", "h2d": "2GB/s", "microbatch": "a=4", "devices": "2"}
    read = Options(layout=parse_layout("2x1"), h2d=2 * 10**9, microbatch=(("a", 4),), devices=(2,))
    assert Options(**said) == read
    assert read.told() == {"layout": "2x1", "h2d": "2000000000 bytes/s"}
    with pytest.raises(FormatError, match="--reorder-window: '0' is not a whole number"):
        Options(**{"reorder_window": "0"})  # type: ignore[arg-type]


PROFILE = synthetic.profile(synthetic.task("a", layers=1, steps=20), usable_bytes=24 << 20)
TEXTS = synthetic.profile(text_task("a"), usable_bytes=24 << 20)


SUMS = (Addition(0, 1, "(0 + 1)"),)  # of a run on several devices


def log_of(done: int, reordered: int = 1) -> RunLog:
    """A run that was kept after so many steps."""
    header = Header(
        plan_sha256="0" * 64,
        started="2025",
        devices=("cpu0",),
        microbatch={"a": 1},
        reordered={"a": reordered} if reordered > 1 else {},
        additions={"a": SUMS},
    )
    return RunLog(header, (), (), None, (CheckpointRecord("a", done, 0),))


@pytest.mark.parametrize("window", [1, 4])
def test_a_task_goes_on_in_the_order_that_its_samples_had(window: int) -> None:
    rest = after(TEXTS, [log_of(3, window)], "run.jsonl", (), window)
    assert rest.done == {"a": 3}


@pytest.mark.parametrize(("was", "window"), [(4, 1), (1, 4), (4, 8)])
def test_another_order_of_what_is_left_is_refused(was: int, window: int) -> None:
    """Some samples would be trained again, and others never."""
    text = f"a has trained 3 steps .* of {was} step.* give --reorder-window {was}"
    with pytest.raises(FormatError, match=text):
        after(TEXTS, [log_of(3, was)], "run.jsonl", (), window)


@pytest.mark.parametrize(
    ("asked", "keeps"),
    [((), True), ([("", 1)], True), ([("a", 1)], True), ([("", 0)], False), ([("", 2)], False)],
)
def test_the_size_that_a_task_had_is_as_good_as_none(asked: Asked, keeps: bool) -> None:
    """Who asks for it gets the same bits, or no plan; another size may add in any order."""
    rest = after(PROFILE, [log_of(8)], "run.jsonl", asked)
    assert (rest.microbatch, rest.additions) == ({"a": 1}, {"a": SUMS} if keeps else {})


def test_segments_end_after_so_many_steps() -> None:
    """Same steps, same order, each piece as long as the simulator says; the rest is proven."""
    tasks = [synthetic.task(f"t{n}", layers=3, steps=40, batch=1, seed=n % 2) for n in range(3)]
    asked = synthetic.problem(*tasks, usable_bytes=8 << 20, bytes_per_s=10**9, devices=2)
    asked = replace(asked, layout=Layout(((1,),)))  # each task on one device
    whole = build(asked, profile_sha256="0" * 64)
    parts = build(replace(asked, segment_steps=7), profile_sha256="0" * 64)
    programs = {program.name: program for program in parts.programs}
    assert max(segment.rounds for segment in parts.segments) == 7
    for segment in parts.segments:
        us = duration_us(programs[segment.program], segment.rounds)
        assert segment.end_us - segment.start_us == us
    assert parts.prediction.makespan_us >= whole.prediction.makespan_us
    assert plans.violations(parts) == []


def test_the_option_of_build(tmp_path: Path) -> None:
    made = synthetic.task("a", layers=3, steps=10, batch=2)
    profiles.save(tmp_path / "p.json", synthetic.profile(made, usable_bytes=64 << 20))
    call = ("build", tmp_path / "p.json", "-o", tmp_path / "plan.json")
    succeeded(planner_cli(*call, "--segment-steps", 4))
    plan = plans.load(tmp_path / "plan.json")
    assert [segment.rounds for segment in plan.segments] == [4, 4, 2]


@pytest.mark.parametrize(
    ("asked", "sizes"), [(("1",), [1, 1]), (("b=1", "2"), [2, 1]), (("1", "b=4"), [1, 4])]
)
def test_tasks_have_the_microbatches_asked_for(
    asked: tuple[str, ...], sizes: list[int], tmp_path: Path
) -> None:
    """What is said of one task counts more than what is said of all, in any order."""
    tasks = [synthetic.task(name, layers=3, seed=1, batch=4) for name in "ab"]
    profiles.save(tmp_path / "x.json", synthetic.profile(*tasks, usable_bytes=64 << 20))
    call = ("build", tmp_path / "x.json", "-o", tmp_path / "plan.json")
    succeeded(planner_cli(*call, *(part for one in asked for part in ("--microbatch", one))))
    assert [task.microbatch for task in plans.load(tmp_path / "plan.json").tasks] == sizes


def written(folder: Path, *links: Link, name: str = "p.json") -> Path:
    """A profile whose device has these links as well."""
    profile = synthetic.profile(synthetic.task("a", layers=3, steps=10), usable_bytes=64 << 20)
    (device,) = profile.machine.devices
    device = structs.replace(device, links=(*device.links, *links))
    machine = structs.replace(profile.machine, devices=(device,))
    profiles.save(folder / name, structs.replace(profile, machine=machine))
    return folder / name


def test_nodes_are_read_and_shown() -> None:
    assert parse_nodes(" 2x8 ") == Nodes(2, 8)
    assert (str(Nodes(128, 8)), Nodes(128, 8).total) == ("128x8", 1024)


@pytest.mark.parametrize("text", ["", "2", "2x", "x8", "0x8", "2x0", "-1x2", "2x2x2", "9999x9999"])
def test_what_are_no_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not like 2x8|there can be"):
        parse_nodes(text)


def test_one_node_is_as_so_many_devices(tmp_path: Path) -> None:
    profile = written(tmp_path)
    for flag, value in (("--nodes", "1x2"), ("--devices", "2")):
        succeeded(planner_cli("build", profile, flag, value, "-o", tmp_path / f"{flag}.json"))
    assert (tmp_path / "--nodes.json").read_bytes() == (tmp_path / "--devices.json").read_bytes()


def test_a_network_is_as_profiled_or_as_given(tmp_path: Path) -> None:
    """Without a latency it has that of the links within a node."""
    own = Link("net", Rate(10**9, 30), Rate(8 * 10**8, 40))
    with_net, without = written(tmp_path, own), written(tmp_path, name="q.json")
    inside = Links.of(read_problem(str(without)).device)

    def net(profile: Path, **asked: int) -> Rate | None:
        options = Options(nodes=parse_nodes("2x1"), **asked)
        return Links.of(read_problem(str(profile), options).device).net

    assert net(with_net) == own.both
    assert net(with_net, net=5) == Rate(5, 40)
    assert net(with_net, net_latency=7) == Rate(own.both.bytes_per_s, 7)
    latency = (inside.p2p or inside.h2d_both).latency_us
    assert net(without, net=5) == Rate(5, latency)


def test_a_plan_says_the_node_of_every_device(tmp_path: Path) -> None:
    """And show tells of them; --devices may say the same number."""
    profile, plan = written(tmp_path), tmp_path / "plan.json"
    call = ("build", profile, "--nodes", "2x2", "--net", "1GB/s", "--devices", 4, "-o", plan)
    answer = succeeded(planner_cli(*call))
    assert [device.node for device in plans.load(plan).devices] == [0, 0, 1, 1]
    assert "host store of node 1" in answer.out
