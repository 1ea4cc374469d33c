"""What process 0 fetches from the host stores of other nodes, to write it to files.

Every other node's first process has a group with process 0, made and used once at the start.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from executor.distributed.links import groups
from executor.distributed.stores import SharedMemory
from executor.errors import RunError, one_line
from plans.order import Kept, homes, values
from plans.part import Part
from plans.timing import union

_PIECE = 16 << 20  # bytes of one message
_AT_ONCE = 2  # messages under way, so that no end waits for the other between two

Ask = Callable[[int, str, list[int]], None]  # a process to send these shards of a task


class Stores:
    """The stores of all nodes, for the first process of one of them; `memory` is its own. What is
    fetched may bring nothing for so long."""

    def __init__(self, part: Part, memory: SharedMemory, limit_s: float) -> None:
        self._part, self._memory, self._limit = part, memory, timedelta(seconds=limit_s)
        self._groups = _groups(part)
        self._homes = homes(part.plan)
        self._guests: set[Kept] = set()  # that node 0 has for a while

    def bring(self, task: str, ask: Ask) -> None:
        """Let node 0 have all of a task, and of others only what it uses."""
        self._give_back({shard for shard in self._guests if shard[0] != task})
        for source, numbers in self._elsewhere(task).items():
            self._guests |= {(task, number) for number in numbers}
            ask(self._part.firsts[source], task, numbers)
            try:
                self._move(dist.irecv, source, task, numbers)
            except RuntimeError as error:
                raise RunError(
                    f"task {task} does not come from node {source}: {one_line(error)}; raise "
                    "--stall-seconds if it is only slow"
                ) from None

    def send(self, task: str, numbers: Iterable[int]) -> None:
        """Send shards of a task to node 0, in a thread of its own; if that fails, process 0 says
        so."""

        def move() -> None:
            with suppress(RuntimeError):
                self._move(dist.isend, self._part.node, task, numbers)

        threading.Thread(target=move, daemon=True, name=f"sends {task}").start()

    def _move(
        self, begin: Callable[..., dist.Work | None], node: int, task: str, numbers: Iterable[int]
    ) -> None:
        """An end of what goes from a node to node 0."""
        group, under_way = self._groups[node], deque[dist.Work]()
        first, sender = dist.get_process_group_ranks(group)
        shards = ((task, number) for number in numbers)
        for buffer, count in values(self._part.plan.host.buffers, self._part.tasks, shards):
            flat = self._memory.flat[buffer.offset : buffer.offset + count]
            for piece in torch.split(flat, _PIECE):
                work = begin(piece, sender if begin is dist.irecv else first, group=group)
                assert work, "this process is in the group"
                under_way.append(work)
                if len(under_way) == _AT_ONCE:
                    under_way.popleft().wait(self._limit)
        for work in under_way:
            work.wait(self._limit)

    def _elsewhere(self, task: str) -> dict[int, list[int]]:
        """The shards of a task that node 0 does not have, by the node that has them."""
        found: dict[int, list[int]] = {}
        for (name, number), nodes in self._homes.items():
            if name == task and nodes and 0 not in nodes:
                found.setdefault(min(nodes), []).append(number)
        return found

    def _give_back(self, shards: Iterable[Kept]) -> None:
        """Take no memory for these any more."""
        gone, plan = set(shards), self._part.plan
        kept = values(plan.host.buffers, plan.tasks, gone)
        for begin, end in union((b.offset, b.offset + b.bytes) for b, _ in kept):
            self._memory.give_back(begin, end)
        self._guests -= gone


def _groups(part: Part) -> Mapping[int, dist.ProcessGroup]:
    """The groups of this process with process 0, by the other node."""
    others = {node: first for node, first in part.firsts.items() if node}
    made = groups([(first, part.firsts[0]) for first in others.values()], "gloo")
    return {list(others)[number]: group for number, group in made}
