"""Machines of so many devices each, with a host memory each and a network between them."""

import dataclasses

from msgspec.structs import replace

from planner.inputs.layout import Nodes
from planner.inputs.problem import Problem
from profiles.errors import FormatError
from profiles.schema import Device, Link, Profile, Rate


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
