"""What process 0 fetches from the host stores of other nodes, to write it to files."""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

from executor.distributed.links import Mesh
from executor.distributed.messages import Carried, Carry
from executor.distributed.stores import Carrier, Job, SharedMemory
from executor.errors import RunError
from plans.order import Kept, homes, values
from plans.schema import Plan
from plans.timing import union

_LOOK_S = 0.1  # between two looks at what is fetched


class Going:
    """A job, as far as its two ends have told, with what went wrong."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.latest = time.perf_counter()
        self.trouble = ""
        self._left = {job.source, 0}
        self._changed = threading.Condition()

    def moved(self) -> None:
        """An end has got on."""
        self.latest = time.perf_counter()

    def end(self, node: int, trouble: str) -> None:
        """The end at this node is over."""
        self.moved()
        with self._changed:
            self.trouble = self.trouble or trouble
            self._left.discard(node)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """True if it has ended by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)


class Jobs:
    """All jobs of a run; firsts: the first process of each node. What is fetched may bring nothing
    for `limit_s`."""

    def __init__(
        self,
        plan: Plan,
        mesh: Mesh,
        carrier: Carrier,
        memory: SharedMemory,
        firsts: list[int],
        limit_s: float,
    ) -> None:
        self._plan, self._mesh, self._carrier = plan, mesh, carrier
        self._memory, self._firsts, self._limit_s = memory, firsts, limit_s
        self._homes = homes(plan)
        self._guests: set[Kept] = set()  # that node 0 has for a while
        self._going: dict[int, Going] = {}
        self._numbers = count()

    def hear(self, rank: int, message: Carried) -> None:
        """Take in what the first process of a node says, from its thread."""
        going = self._going[message.number]
        if message.over:
            going.end(self._firsts.index(rank), message.trouble)
        else:
            going.moved()

    def bring(self, task: str, check: Callable[[], None]) -> None:
        """Let node 0 have all of a task, and of others only what it uses. check: called meanwhile,
        raises for a process that is gone."""
        self._give_back({shard for shard in self._guests if shard[0] != task})
        for source, numbers in self._elsewhere(task).items():
            self._guests |= {(task, number) for number in numbers}
            going = Going(Job(next(self._numbers), task, tuple(numbers), source))
            self._start(going)
            while not going.wait(_LOOK_S):
                check()
                if time.perf_counter() - going.latest > self._limit_s:
                    raise RunError(
                        f"no more of task {task} comes from node {source} for {self._limit_s:g} s; "
                        "raise --stall-seconds if it is only slow"
                    )
            if going.trouble:
                raise RunError(f"task {task} cannot be fetched from node {source}: {going.trouble}")

    def _elsewhere(self, task: str) -> dict[int, list[int]]:
        """The shards of a task that node 0 does not have, by the node that has them."""
        found: dict[int, list[int]] = {}
        for (name, number), nodes in self._homes.items():
            if name == task and nodes and 0 not in nodes:
                found.setdefault(min(nodes), []).append(number)
        return found

    def _start(self, going: Going) -> None:
        """Let both ends of a job begin."""
        job = going.job
        self._going[job.number] = going
        self._mesh.send(self._firsts[job.source], Carry(*job))
        self._carrier.start(job, going.moved, partial(going.end, 0))

    def _give_back(self, shards: Iterable[Kept]) -> None:
        """Take no memory for these any more."""
        gone = set(shards)
        kept = values(self._plan.host.buffers, self._plan.tasks, gone)
        for begin, end in union((b.offset, b.offset + b.bytes) for b, _ in kept):
            self._memory.give_back(begin, end)
        self._guests -= gone
