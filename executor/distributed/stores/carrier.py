"""Copies from the host store of another node to that of node 0, between their first processes.

Every node has a group with node 0, made and used once at the start.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from executor.distributed.links import groups
from executor.errors import text_of
from plans.order import values
from plans.part import Part

PIECE = 16 << 20  # bytes of one message
_AT_ONCE = 2  # messages under way, so that no end waits for the other between two
_TELL_S = 0.2  # between two reports that it goes on


class Job(NamedTuple):
    """Some shards of a task on their way from a node to node 0; the number is nobody else's."""

    number: int
    task: str
    shards: tuple[int, ...]
    source: int


class Carrier:
    """The ends of all jobs in this process, the first of its node, whose store is `flat`."""

    def __init__(self, part: Part, flat: Tensor, groups: Mapping[int, dist.ProcessGroup]) -> None:
        self._part, self._flat, self._groups = part, flat, groups

    def start(self, job: Job, moved: Callable[[], None], ended: Callable[[str], None]) -> None:
        """Send or receive in a thread of its own. moved: called now and then, while it goes on;
        ended: last of all, with what went wrong."""

        def carry() -> None:
            try:
                self._carry(job, moved)
            except Exception as error:
                ended(text_of(error))
            else:
                ended("")

        threading.Thread(target=carry, daemon=True, name=f"job {job.number}").start()

    def _carry(self, job: Job, moved: Callable[[], None]) -> None:
        group = self._groups[job.source]
        receiver, sender = dist.get_process_group_ranks(group)
        told, under_way = time.monotonic(), deque[dist.Work]()
        for piece in self._pieces(job):
            if self._part.node == job.source:
                work = dist.isend(piece, receiver, group=group, tag=job.number)
            else:
                work = dist.irecv(piece, sender, group=group, tag=job.number)
            assert work, "this process is in the group"
            under_way.append(work)
            if len(under_way) == _AT_ONCE:
                under_way.popleft().wait()
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                moved()
        for work in under_way:
            work.wait()

    def _pieces(self, job: Job) -> Iterable[Tensor]:
        shards = ((job.task, number) for number in job.shards)
        for buffer, count in values(self._part.plan.host.buffers, self._part.tasks, shards):
            yield from torch.split(self._flat[buffer.offset : buffer.offset + count], PIECE)


def carrier(part: Part, flat: Tensor) -> Carrier:
    """The carrier of a process that has this part of the plan: from all other nodes to node 0 goes
    what is written to files."""
    others = {node: first for node, first in part.firsts.items() if node}
    made = groups([(first, part.firsts[0]) for first in others.values()], "gloo")
    return Carrier(part, flat, {list(others)[number]: group for number, group in made})
