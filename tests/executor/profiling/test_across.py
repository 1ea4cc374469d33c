"""Links between processes, as a profile has them."""

import json

import pytest

pytest.importorskip("torch")

from support import small_tasks
from support.agents import IN_TURN
from support.forked import ended, started, torchrun

import profiles
from planner.shards.shard_cost import Links
from profiles.schema import Link, Profile

RATE, PACE_US = 20_000_000, 5


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Profile]:
    """Profiles of two processes: of one machine, and of two."""
    folder = tmp_path_factory.mktemp("across")
    commands = [
        json.dumps(
            [
                *("profile", f"{small_tasks.__file__}:dropout", "--device-memory", "1MiB"),
                *("--samples", "1", "--p2p", f"{RATE}B/s", "--latency-us", f"{PACE_US}"),
                *("-o", f"{name}.json"),
            ]
        )
        for name in ("near", "far")
    ]
    said = folder / "said"
    both = started(torchrun(2, IN_TURN, *commands), said, folder, APART="last")
    assert ended(both) == 0, said.read_text()
    assert said.read_text().count("profile: ") == 2
    return {name: profiles.load(folder / f"{name}.json") for name in ("near", "far")}


def link(profile: Profile, kind: str) -> Link:
    (one,) = (link for link in profile.machine.devices[0].links if link.kind == kind)
    return one


@pytest.mark.parametrize(("machines", "kind"), [("near", "p2p"), ("far", "net")])
def test_a_link_has_its_pace_and_what_processes_take(
    found: dict[str, Profile], machines: str, kind: str
) -> None:
    """An emulated link is as fast as it says, and a copy between processes takes longer to begin
    than it says, whatever the machine."""
    for rate in (link(found[machines], kind).alone, link(found[machines], kind).both):
        assert RATE // 2 < rate.bytes_per_s < 2 * RATE
        assert rate.latency_us > 2 * PACE_US


def test_each_kind_is_measured_where_it_is(found: dict[str, Profile]) -> None:
    """Between machines, only the net is; between devices of one process, p2p costs nothing else."""
    near, far = (
        {link.kind for link in found[name].machine.devices[0].links} for name in ("near", "far")
    )
    assert far - near == {"net"}
    assert link(found["far"], "p2p").alone.latency_us < link(found["near"], "p2p").alone.latency_us
    assert Links.of(found["near"].machine.devices[0]).send_us(0) > 2 * PACE_US
