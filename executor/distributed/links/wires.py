"""Wires between devices of different processes: torch.distributed carries what X copies.

Every pair of devices has a group of its own, in each direction: copies of one do not wait for those
of another, and all of a pair go in the order of the plan.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from executor.errors import RunError, one_line
from plans.schema import Plan
from plans.view import site

T = TypeVar("T")
Pair = tuple[int, int]  # devices of the plan, the sender first


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


def pairs(plan: Plan, rank_of: Callable[[int], int]) -> list[Pair]:
    """The pairs of devices in different processes between which the plan has an X."""
    found: set[Pair] = set()
    places = dict.fromkeys((s.program, s.devices) for s in plan.segments)
    for name, devices in places:
        program = plan.program(name)
        spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}
        for op in program.ops:
            if op.stream.endswith(".p2p"):
                (target,) = (spaces[buffer] for buffer in op.writes.values())
                found.add((devices[site(op.stream)[1]], devices[target]))
    return sorted(pair for pair in found if rank_of(pair[0]) != rank_of(pair[1]))


def wires(
    every: Iterable[Pair], rank_of: Callable[[int], int], backend: str
) -> dict[Pair, GroupWire]:
    """A wire for every pair. All processes make all groups, in one order, and use theirs once, so
    that no connection is made later on."""
    import torch

    made = {}
    for sender, receiver in every:
        ends = rank_of(sender), rank_of(receiver)
        group = dist.new_group(sorted(ends), backend=backend)
        made[sender, receiver] = wire = GroupWire(group, *ends, early=backend == "gloo")
        byte = torch.zeros(1, dtype=torch.uint8)
        if backend == "nccl":
            byte = byte.cuda()
        if dist.get_rank() == ends[0]:
            wire.send(byte, 0)
        elif dist.get_rank() == ends[1]:
            wire.receive(byte, 0)()
    return made
