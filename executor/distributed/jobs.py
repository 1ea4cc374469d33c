"""Jobs between the host stores of nodes, as process 0 leads them: the plan's transfers, and what it
fetches to write files."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count

from executor.devices import Now
from executor.distributed.links import Mesh
from executor.distributed.messages import Carried, Carry
from executor.distributed.stores import Carrier, Copies, Job, SharedMemory
from executor.errors import RunError
from executor.replay import Activity, Failure, Setup
from plans.ops import parse_id
from plans.order import Kept, held, moved_shards, values
from plans.schema import Buffer, Plan
from plans.timing import NET, union
from profiles.units import show_bytes

_LOOK_S = 0.1  # between two looks at what is fetched


class Going:
    """A job, as far as its two ends have told; `over` is called when both are, with what went
    wrong."""

    def __init__(self, job: Job, over: Callable[[str], None] = lambda _: None) -> None:
        self.job = job
        self.latest = time.perf_counter()
        self.trouble = ""
        self._over = over
        self._left = {job.source, job.target}
        self._changed = threading.Condition()

    @property
    def ended(self) -> bool:
        return not self._left

    def moved(self) -> None:
        """An end has got on."""
        self.latest = time.perf_counter()

    def end(self, node: int, trouble: str) -> None:
        """The end at this node is over."""
        self.moved()
        with self._changed:
            self.trouble = self.trouble or trouble
            if self._left == {node}:
                self._over(self.trouble)
            self._left.discard(node)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """True if it has ended by then."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, seconds)


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
        self.copies = Copies(plan)
        self.plan = plan
        self._mesh, self._carrier = mesh, carrier
        self._memory, self._firsts, self._limit_s = memory, firsts, limit_s
        self._own = held(plan)[0]
        self._guests: set[Kept] = set()
        self._going: dict[int, Going] = {}
        self._numbers: Iterator[int] = count(len(plan.net.transfers) if plan.net else 0)

    def start(self, going: Going) -> None:
        """Let both ends of a job begin."""
        job = going.job
        self._going[job.number] = going
        for node in (job.source, job.target):
            if node:
                self._mesh.send(self._firsts[node], Carry(*job))
            else:
                self._carrier.start(job, going.moved, partial(going.end, 0))

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
        for source, numbers in self.copies.lacking(task, 0).items():
            going = Going(Job(next(self._numbers), task, tuple(numbers), source, 0))
            shards = {(task, number) for number in numbers}
            self._guests |= shards - self._own
            self.start(going)
            while not going.wait(_LOOK_S):
                check()
                if time.perf_counter() - going.latest > self._limit_s:
                    raise RunError(
                        f"no more of task {task} comes from node {source} for {self._limit_s:g} s; "
                        "raise --stall-seconds if it is only slow"
                    )
            if going.trouble:
                raise RunError(f"task {task} cannot be fetched from node {source}: {going.trouble}")
            self.copies.copied(shards, 0)

    def values(self, shards: Iterable[Kept]) -> list[tuple[Buffer, int]]:
        """The host buffers with all that is kept of these shards, each with its bytes."""
        return values(self.plan.host.buffers, self.plan.tasks, shards)

    def _give_back(self, shards: set[Kept]) -> None:
        """Take no memory for these any more."""
        used = ((b.offset, b.offset + b.bytes) for b, _ in self.values(shards))
        for begin, end in union(used):
            self._memory.give_back(begin, end)
        self.copies.lost(shards, 0)
        self._guests -= shards


class TransferRun(Activity):
    """A transfer of the plan, which counts if it gets to its end."""

    vital = True  # nothing else brings its task to the node

    def __init__(self, jobs: Jobs, number: int, setup: Setup) -> None:
        super().__init__(setup)
        assert jobs.plan.net, "a plan with transfers"
        self._jobs, self._transfer = jobs, jobs.plan.net.transfers[number]
        one, task = self._transfer, parse_id(self._transfer.id).task
        self._going = Going(Job(number, task, one.shards, one.source, one.target), self._over)
        self._bytes = sum(size for _, size in jobs.values(moved_shards(one)))
        self._begun = Now()

    @property
    def ended(self) -> bool:
        return self._going.ended

    @property
    def latest(self) -> float:
        return self._going.latest

    def states(self) -> list[str]:
        one, size = self._transfer, show_bytes(self._bytes)
        return [f"{one.id} moves {size} to node {one.target} on {NET}.{one.source}"]

    def stuck(self, text: str) -> Failure:
        return Failure((), text, fatal=True)

    def start(self) -> None:
        self._begun = Now()
        self._jobs.start(self._going)

    def _over(self, trouble: str) -> None:
        """Both ends are over; called from the thread of the last one."""
        one, setup, end = self._transfer, self._setup, Now()
        if trouble:
            stream = f"{NET}.{one.source}"
            setup.failed(Failure((self._going.job.task,), trouble, one.id, stream, fatal=True))
            return
        self._jobs.copies.copied(moved_shards(one), one.target)
        setup.recorder.op(one.segment, one.id, 0, self._begun, end, metered=False)
        net = setup.traffic.net
        net.transfers += 1
        net.bytes += self._bytes
        net.us += int((end.seconds() - self._begun.seconds()) * 1e6)
        setup.halt.tell()
