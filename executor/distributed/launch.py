"""A run of several processes, from their connections to their end.

all     connect, once they have agreed on what they are given
lead    makes the host store; all map it, open their devices, build their models, connect devices
lead    conducts; the others do what it says, and end as it does
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from executor import driver
from executor.conducting import patience_s
from executor.devices import default_source
from executor.distributed.lead import Lead
from executor.distributed.memory import SharedMemory
from executor.distributed.mesh import Mesh
from executor.distributed.messages import Bye, Join, Ready, Welcome
from executor.distributed.team import Peers
from executor.distributed.wires import GroupWire, Pair, pairs, wires
from executor.distributed.worker import Worker
from executor.distributed.world import World
from executor.errors import ProcessError, RunError, UsageError, exit_code_of, text_of
from executor.records import Options, Result, checkpoint
from executor.replay import Recorder
from executor.shards import Cutter, HostStore
from executor.workload import Task
from plans.rest import rest
from plans.schema import Plan
from profiles.console import Interrupted, heard

CONNECT_S = 60  # until all processes are connected

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PART_S = 1.0  # until the others have heard that the run is over
_NEWS_S = 0.5  # that come before a signal, where that follows from them


@dataclass(frozen=True)
class Met:
    """The processes of a run, connected."""

    plan: Plan
    world: World
    mesh: Mesh

    @property
    def devices(self) -> range:
        share = self.world.share(len(self.plan.devices))
        return range(self.world.rank * share, (self.world.rank + 1) * share)

    def rank_of(self, device: int) -> int:
        return self.world.rank_of(device, len(self.plan.devices))

    def wires(self) -> dict[Pair, GroupWire]:
        backend = "nccl" if self.plan.devices[0].kind == "cuda" else "gloo"
        return wires(pairs(self.plan, self.rank_of), self.rank_of, backend)


class _Others:
    """The processes that this one leads."""

    def __init__(self, met: Met, options: Options) -> None:
        self.devices = met.devices
        self._met = met
        size = _store_bytes(met.plan)
        memory = SharedMemory(size)
        self.slab = memory.flat
        self._memory = memory
        reached = options.earlier.reached if options.earlier else None
        for rank in met.mesh.others:
            met.mesh.send(rank, Welcome(memory.path, size, reached))

    def joined(self) -> Lead:
        met = self._met
        waiting = set(met.mesh.others)
        while waiting:
            rank, message = met.mesh.receive(waiting)
            assert isinstance(message, Ready), message
            if message.trouble:
                raise ProcessError(f"process {rank}: {message.trouble}", message.code)
            waiting.discard(rank)
        self._memory.release()
        for rank in met.mesh.others:
            met.mesh.send(rank, Join())
        lead = Lead(met.plan, met.mesh, met.rank_of, met.wires())
        met.mesh.listen(lead.hear)
        return lead


def lead(plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter, met: Met) -> Result:
    """`driver.run` in process 0 of several."""
    return driver.run(plan, tasks, options, cut, _Others(met, options))


def goodbye(met: Met, code: int) -> None:
    """Let the others end with this exit code."""
    for rank in met.mesh.others:
        with suppress(RunError):
            met.mesh.send(rank, Bye(code))
    met.mesh.part(_PART_S)


def follow(plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter, met: Met) -> int:
    """Do what process 0 says until the end; the exit code. It tells what went wrong, unless it is
    gone: RunError."""
    mesh = met.mesh
    with ExitStack() as stack:
        _, welcome = mesh.receive([0])
        if isinstance(welcome, Bye):
            return welcome.code
        assert isinstance(welcome, Welcome), welcome
        left = rest(plan, welcome.reached) if welcome.reached else plan
        files = welcome.reached.files if welcome.reached else None
        memory = SharedMemory(welcome.store_bytes, welcome.store)
        memory.release()
        try:
            devices, pages = stack.enter_context(driver.machine(plan, met.devices))
            source = default_source(plan.devices[0].kind)
            saved = checkpoint.load(options.resume, left.tasks, files)
            own = left, tasks, pages, source, saved, cut, None, memory.flat
            store = HostStore(*own, fills=False)
            for device in devices.values():
                device.limit(sum(task.buffer_bytes for task in store.tasks.values()))
            driver.warm_up(plan)
        except Exception as error:
            mesh.send(0, Ready(text_of(error), exit_code_of(error)))
        else:
            mesh.send(0, Ready())
        _, answer = mesh.receive([0])
        if isinstance(answer, Bye):
            return answer.code
        peers = Peers(met.world.rank, mesh, met.rank_of, met.wires())
        worker = Worker(left, store, devices, Recorder(plan, 0.0), options, peers)
        mesh.listen(worker.hear)
        return worker.work()


@contextmanager
def connected(plan: Plan, options: Options, world: World, store: Store) -> Iterator[Met]:
    """The processes, connected by way of torchrun's store; UsageError where that cannot be.

    Process 0 alone hears of signals meanwhile, and the others of what it makes of them. torchrun
    ends all when one has ended: a signal that follows from that is not heard, but what it follows
    from."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group(
            "gloo",
            store=PrefixStore("gloo", store),
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=CONNECT_S),
        )
        mesh = Mesh(world.rank, world.size, store, patience_s(plan, options))
    except (RuntimeError, OSError, EOFError) as error:
        raise UsageError(f"the {world.size} processes cannot connect: {text_of(error)}") from None

    def hear(number: int, frame: FrameType | None) -> None:
        deadline = time.monotonic() + _NEWS_S
        while not world.rank and not mesh.gone:
            if time.monotonic() > deadline:
                raise Interrupted(number)
            time.sleep(_NEWS_S / 20)

    with heard(_ENDS, hear):
        try:
            yield Met(plan, world, mesh)
        finally:
            mesh.close()
            end = threading.Thread(target=dist.destroy_process_group, daemon=True)
            end.start()
            end.join(_PART_S)  # it waits for ops, where some do not end


def divisible(plan: Plan, world: World) -> None:
    """UsageError for what only one process can do."""

    def rank_of(device: int) -> int:
        return world.rank_of(device, len(plan.devices))

    for segment in plan.segments:
        if len(set(map(rank_of, segment.devices))) > 1:
            for name in plan.trained(segment):
                if None in (shard.rng_draws for shard in plan.task(name).shards):
                    raise UsageError(
                        f"task {name} draws a varying number of random numbers, so that one "
                        "process has to train it; build with a --layout of as many devices as a "
                        "process has, or run without torchrun"
                    )
    groups: dict[int, int] = {}
    for number, device in enumerate(plan.devices):
        if device.emulation and device.link_group is not None:
            rank = rank_of(number)
            if groups.setdefault(device.link_group, rank) != rank:
                raise UsageError(
                    f"emulated device {number} shares its link with a device of another process; "
                    "run with processes that have all devices of a link"
                )


def _store_bytes(plan: Plan) -> int:
    return max((b.offset + b.bytes for b in plan.host.buffers), default=0)
