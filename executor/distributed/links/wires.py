"""Wires between devices of different processes: torch.distributed carries what X copies.

Every pair of devices has a group of its own, in each direction: copies of one do not wait for those
of another, and all of a pair go in the order of the plan.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from executor.devices import sent_by
from executor.errors import RunError, one_line
from plans.parts import Pair

T = TypeVar("T")
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
    count: int, own: Mapping[int, Ends], backend: str
) -> Iterator[tuple[int, dist.ProcessGroup]]:
    """Groups of two processes for the `own` ones of `count` ways, by number, each used once so that
    no connection is made later on. A group's name is its number among those of a process: all
    processes count all."""
    byte = sent_by(backend)
    me, size = dist.get_rank(), dist.get_world_size()
    for number in range(count):
        ends = own.get(number)
        group = dist.new_group(sorted(ends) if ends else [(me + 1) % size], backend=backend)
        if ends is None:
            continue
        if me == ends[0]:
            _with(ends[1], partial(dist.send, byte, ends[1], group=group))
        else:
            _with(ends[0], partial(dist.recv, byte, ends[0], group=group))
        yield number, group


def wires(
    count: int, own: Mapping[int, Pair], rank_of: Callable[[int], int], backend: str
) -> dict[Pair, GroupWire]:
    """Wires for the `own` ones of `count` pairs of devices in different processes, by number;
    `rank_of` says which process has a device."""
    ends = {number: (rank_of(pair[0]), rank_of(pair[1])) for number, pair in own.items()}
    return {
        own[number]: GroupWire(group, *ends[number], early=backend == "gloo")
        for number, group in groups(count, ends, backend)
    }
