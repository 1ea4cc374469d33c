"""Wires between devices of different processes: torch.distributed carries what X copies.

Every pair of devices has a group of its own, in each direction: copies of one do not wait for those
of another, and all of a pair go in the order of the plan.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from executor.devices import sent_by
from executor.errors import RunError, one_line
from plans.ops import Lane
from plans.part import Part

T = TypeVar("T")
Pair = tuple[int, int]  # devices, the sender first
Ends = tuple[int, int]  # processes, the sender first


@dataclass(frozen=True)
class GroupWire:
    """The group of one pair, whose processes are `sender` and `receiver`. `early`: what is received
    can be asked for before it is sent; a GPU would wait for it and do nothing else.

    What a segment that was stopped has still asked for, no other segment gets."""

    group: dist.ProcessGroup
    sender: int
    receiver: int
    early: bool

    def send(self, source: Tensor, segment: int) -> None:
        send = partial(dist.send, source, self.receiver, group=self.group, tag=segment)
        _with(self.receiver, send)

    def receive(self, target: Tensor, segment: int) -> Callable[[], object]:
        if not self.early:
            receive = partial(dist.recv, target, self.sender, group=self.group, tag=segment)
            return partial(_with, self.sender, receive)
        ask = partial(dist.irecv, target, self.sender, group=self.group, tag=segment)
        asked = _with(self.sender, ask)
        assert asked, "this process is in the group"
        return partial(_with, self.sender, asked.wait)


def _with(rank: int, call: Callable[[], T]) -> T:
    """The result of a call that process `rank` takes part in."""
    try:
        return call()
    except RuntimeError as error:
        raise RunError(f"process {rank} is gone or does not answer: {one_line(error)}") from None


def groups(
    ways: Sequence[Ends], backend: str, on: Sequence[int] = ()
) -> Iterator[tuple[int, dist.ProcessGroup]]:
    """Groups of two processes for those of these ways that this one is an end of, by number, each
    used once so that no connection is made later on: where it uses devices, by the one that it is
    for, `on` for each way. A group's name is its number among those of a process: all processes
    count all."""
    me, size = dist.get_rank(), dist.get_world_size()
    for number, ends in enumerate(ways):
        group = dist.new_group(sorted(ends) if me in ends else [(me + 1) % size], backend=backend)
        if me not in ends:
            continue
        byte = sent_by(backend, on[number] if on else 0)
        if me == ends[0]:
            _with(ends[1], partial(dist.send, byte, ends[1], group=group))
        else:
            _with(ends[0], partial(dist.recv, byte, ends[0], group=group))
        yield number, group


def wires(part: Part, backend: str) -> dict[Pair, GroupWire]:
    """Wires from and to this process' devices, between which and others the plan has an X."""
    pairs = crossing(part)
    ways = [(part.ranks[sender], part.ranks[receiver]) for sender, receiver in pairs]
    own = (next((n for n in pair if part.ranks[n] == part.me), None) for pair in pairs)
    on = [0 if device is None else part.node_devices.index(device) for device in own]
    return {
        pairs[number]: GroupWire(group, *ways[number], early=backend == "gloo")
        for number, group in groups(ways, backend, on)
    }


def crossing(part: Part) -> list[Pair]:
    """All pairs of devices in different processes between which a plan has an X."""
    plan, found = part.plan, set[Pair]()
    for name, devices in {(one.program, one.devices) for one in plan.segments}:
        program = plan.program(name)
        spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
        sends = (op for op in program.ops if op.queue.lane is Lane.P2P)
        ends = {(op.queue.device, spaces[name]) for op in sends for name in op.writes.values()}
        found |= {(devices[sender], devices[receiver]) for sender, receiver in ends}
    return sorted(pair for pair in found if part.ranks[pair[0]] != part.ranks[pair[1]])
