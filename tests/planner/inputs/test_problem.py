"""Microbatches, nodes and segments that are asked for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from support import synthetic
from support.cli import planner_cli, succeeded

import plans
import profiles
from planner import Options, build, read_problem
from planner.inputs import Layout, Nodes, parse_nodes
from planner.shards import Links
from plans.timing import duration_us
from profiles.schema import Link, Rate

pytestmark = pytest.mark.usefixtures("quick")


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
    """The last segment has what is left."""
    made = synthetic.task("a", layers=3, steps=10, batch=2)
    profiles.save(tmp_path / "p.json", synthetic.profile(made, usable_bytes=64 << 20))
    call = ("build", tmp_path / "p.json", "-o", tmp_path / "plan.json")
    succeeded(planner_cli(*call, "--segment-steps", 4))
    plan = plans.load(tmp_path / "plan.json")
    assert [segment.rounds for segment in plan.segments] == [4, 4, 2]


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [(("1",), [1, 1]), (("b=1", "2"), [2, 1]), (("a=4", "b=2"), [4, 2]), (("1", "b=4"), [1, 4])],
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
    """Nodes x devices of each."""
    assert parse_nodes(" 2x8 ") == Nodes(2, 8)
    assert (str(Nodes(128, 8)), Nodes(128, 8).total) == ("128x8", 1024)


@pytest.mark.parametrize("text", ["", "2", "2x", "x8", "0x8", "2x0", "-1x2", "2x2x2", "9999x9999"])
def test_what_are_no_nodes_is_refused(text: str) -> None:
    """By the text."""
    with pytest.raises(ValueError, match=r"is not like 2x8|there can be"):
        parse_nodes(text)


def test_one_node_is_as_so_many_devices(tmp_path: Path) -> None:
    """Byte for byte, but for what was asked."""
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


@pytest.mark.parametrize("devices", [4, [4], (4,)])
def test_the_devices_of_all_nodes_may_be_said_as_well(
    tmp_path: Path, devices: int | Sequence[int]
) -> None:
    """As a number, or as that of each kind."""
    problem = read_problem(
        str(written(tmp_path)), Options(nodes=parse_nodes("2x2"), net=5, devices=devices)
    )
    assert (problem.devices, problem.nodes) == (4, 2)


def test_a_plan_says_the_node_of_every_device(tmp_path: Path) -> None:
    """And show tells of them; --devices may say the same number."""
    profile, plan = written(tmp_path), tmp_path / "plan.json"
    call = ("build", profile, "--nodes", "2x2", "--net", "1GB/s", "--devices", 4, "-o", plan)
    answer = succeeded(planner_cli(*call))
    assert [device.node for device in plans.load(plan).devices] == [0, 0, 1, 1]
    assert "host store of node 1" in answer.out
