"""Nodes: machines of so many devices each, with a host memory each and a network between them.

2x8   two nodes of eight devices, which are numbered node by node
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from planner.inputs.problem import Problem
from profiles.errors import FormatError
from profiles.schema import Device, Link, Profile, Rate

_MOST = 1 << 16  # devices


@dataclass(frozen=True)
class Nodes:
    """So many nodes of so many devices each."""

    count: int
    devices: int

    @property
    def total(self) -> int:
        """The devices of all nodes."""
        return self.count * self.devices

    def __str__(self) -> str:
        return f"{self.count}x{self.devices}"


def parse_nodes(text: str) -> Nodes:
    """Nodes like `2x8`, nodes x devices of each; ValueError for anything else."""
    parts = [part.strip() for part in text.split("x")]
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) < 6 for p in parts):
        raise ValueError(f"{text!r} is not like 2x8, nodes x devices of each")
    nodes = Nodes(*map(int, parts))
    if not 0 < nodes.total <= _MOST:
        raise ValueError(f"{text!r} has {nodes.total} devices, there can be 1 to {_MOST}")
    return nodes


def asked_nodes(
    given: Nodes | str | None,
    devices: Sequence[int] | None,
    kinds: int,
    net: tuple[int | None, int | None],
    disk_space: int | None,
) -> Nodes | None:
    """The nodes that were asked for; FormatError for what does not go with them.

    devices: how many of each kind, of so many kinds, if that was asked for as well. net: the rate
    and the latency of the network. disk_space: bytes, 0 for no disk.
    """
    try:
        nodes = parse_nodes(given) if isinstance(given, str) else given
    except ValueError as error:
        raise FormatError(f"--nodes: {error}") from error
    if devices is not None and nodes and list(devices) != [nodes.total]:
        told = ",".join(map(str, devices))
        raise FormatError(
            f"--nodes {nodes} has {nodes.total} devices, --devices says {told}; leave out --devices"
        )
    if nodes and nodes.count > 1 and kinds > 1:
        raise FormatError(
            f"--nodes {nodes} are of devices of one kind, but there are {kinds} profiles; give "
            "one of them"
        )
    if nodes and nodes.count > 1 and disk_space:
        raise FormatError(
            f"--disk-space: on several nodes tasks cannot wait on a disk; with --nodes {nodes} "
            "leave it out"
        )
    if net != (None, None) and (nodes is None or nodes.count == 1):
        raise FormatError("--net and --net-latency are about several nodes; give --nodes like 2x8")
    return nodes


def networked(profile: Profile, rate: int | None, latency_us: int | None) -> Profile:
    """The profile with a network of this rate, in bytes per second, and latency; None: as profiled.

    Where no latency is known, it is that of copies between devices of a node, or to the host."""
    devices = tuple(_networked(device, rate, latency_us) for device in profile.machine.devices)
    return replace(profile, machine=replace(profile.machine, devices=devices))


def _networked(device: Device, rate: int | None, latency_us: int | None) -> Device:
    links = {link.kind: link for link in device.links}
    known = next(links[kind].both for kind in ("net", "p2p", "h2d") if kind in links)
    if rate is None and "net" not in links:
        raise FormatError(
            "--nodes: the profile does not say how fast the network between nodes is; give its "
            "rate, like --net 12GB/s"
        )
    told = Rate(rate or known.bytes_per_s, known.latency_us if latency_us is None else latency_us)
    net = links.get("net") if rate is None and latency_us is None else None
    others = (link for link in device.links if link.kind != "net")
    return replace(device, links=(*others, net or Link("net", told, told)))


def on_nodes(problem: Problem, nodes: Nodes) -> Problem:
    """The problem with its devices on several nodes, each of which has the host memory of the
    problem, and no disk; FormatError for what cannot be planned there."""
    layout = problem.layout
    made = dataclasses.replace(problem.alike(node=nodes.devices), disk=None)
    if layout and layout.devices <= nodes.total and not made.only.holds(layout.devices):
        raise FormatError(
            f"--layout {layout} takes {layout.devices} devices; with --nodes {nodes} a task takes "
            f"up to {nodes.devices} of a node, or whole nodes"
        )
    return made
