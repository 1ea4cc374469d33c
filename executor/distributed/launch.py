"""A run of several processes, from their meeting to their end.

all     meet at torchrun's store, connect, compare what they were given
all     of a node map its host store, which its first process makes
all     open their devices, build their models, connect devices and stores
lead    conducts; the others do what it says
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import count

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from executor import driver
from executor.devices import default_source
from executor.distributed.addresses import interface_of, own_address
from executor.distributed.jobs import Jobs
from executor.distributed.lead import Lead
from executor.distributed.links import Clock, GroupWire, Pair, machine_id, pairs, wires
from executor.distributed.mesh import Mesh
from executor.distributed.messages import Bye, Hello, Ready, Time, Welcome
from executor.distributed.stores import Carrier, SharedMemory, carrier, node_store
from executor.distributed.team import Peers
from executor.distributed.worker import Worker
from executor.distributed.world import World
from executor.errors import MismatchError, RunError, UsageError, text_of
from executor.records import Options, Result, checkpoint
from executor.replay import Recorder
from executor.shards import Cutter, HostStore, Shared
from executor.workload import Task
from plans.nodes import host_bytes
from plans.schema import Plan
from profiles.console import heard
from profiles.errors import GantryError

_MEET_S = 60  # until all processes have come

_QUESTIONS = 20  # for the time, before a run begins
_LOOK_S = 1.0  # between two looks at whether the agent is there
_FETCH_S = 60.0  # that nothing may come of what is fetched to be written
_LATE_S = 30.0  # that a run may take to end without it
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_RUNS = count()  # of these processes, each of which meets anew

Inputs = Mapping[str, str]  # what has to be the same in all processes, by name


@dataclass(frozen=True)
class _Met:
    """The processes of a run, connected."""

    plan: Plan
    world: World
    mesh: Mesh

    @cached_property
    def ranks(self) -> Sequence[int]:
        return self.world.ranks(self.plan)

    @property
    def devices(self) -> list[int]:
        return [number for number, rank in enumerate(self.ranks) if rank == self.world.rank]

    def rank_of(self, device: int) -> int:
        return self.ranks[device]

    def wires(self) -> dict[Pair, GroupWire]:
        backend = "nccl" if self.plan.devices[0].kind == "cuda" else "gloo"
        return wires(pairs(self.plan, self.rank_of), self.rank_of, backend)

    def store(self) -> SharedMemory:
        return node_store(self.world, self.mesh, host_bytes(self.plan))

    def carrier(self, memory: SharedMemory) -> Carrier:
        world = self.world
        return carrier(self.plan, world.node, memory.flat, world.first, world.nodes)


class _Others:
    """The processes that this one leads."""

    def __init__(self, met: _Met, inputs: Inputs, options: Options) -> None:
        self.devices: Sequence[int] = met.devices
        self.lead: Lead | None = None
        self._met, self._limit_s = met, options.stall_seconds or _FETCH_S
        trouble = _compared(met, inputs)
        for rank in met.mesh.others:
            met.mesh.send(rank, Welcome(trouble, machine_id()))
        if trouble:
            raise MismatchError(trouble)
        self._memory = met.store()
        self.store = Shared(self._memory.flat, 0, fills=True, bring=self._bring)

    def joined(self) -> Lead:
        met, world = self._met, self._met.world
        for rank in met.mesh.others:
            while isinstance(message := met.mesh.receive(rank), Time):
                met.mesh.send(rank, Time(message.asked, time.perf_counter()))
            assert isinstance(message, Ready), message
            if message.trouble:
                raise RunError(f"process {rank}: {message.trouble}")
        wires, carried = met.wires(), met.carrier(self._memory)
        firsts = [world.first(node) for node in range(world.nodes)]
        jobs = Jobs(met.plan, met.mesh, carried, self._memory, firsts, self._limit_s)
        self.lead = Lead(met.plan, met.mesh, met.rank_of, wires, jobs)
        met.mesh.listen(self.lead.hear)
        return self.lead

    def goodbye(self, trouble: str) -> None:
        """The run is over, because of that if it did not end well."""
        if self.lead:
            self.lead.over = True
        for rank in self._met.mesh.others:
            with suppress(RunError):
                self._met.mesh.send(rank, Bye(trouble))

    def _bring(self, task: str) -> None:
        assert self.lead, "nothing is trained before"
        self.lead.bring(task)


@contextmanager
def lead(
    plan: Plan,
    tasks: Sequence[Task],
    options: Options,
    cut: Cutter,
    world: World,
    inputs: Inputs,
) -> Iterator[Result]:
    """`driver.run` in process 0 of several. Within, states of tasks may still come from others."""
    with _met(plan, world) as met:
        others, trouble = _Others(met, inputs, options), "process 0 has failed"
        try:
            result = driver.run(met.plan, tasks, options, cut, others)
            trouble = ""
            yield result
        except BaseException as error:
            trouble = text_of(error)
            raise
        finally:
            others.goodbye(trouble)


def follow(
    plan: Plan,
    tasks: Sequence[Task],
    options: Options,
    cut: Cutter,
    world: World,
    inputs: Inputs,
) -> int:
    """Do what process 0 says until the end; the exit code. Process 0 tells what went wrong."""
    with _met(plan, world) as met:
        mesh = met.mesh
        mesh.send(0, Hello(world.rank, dict(inputs)))
        welcome = mesh.expect(0, Welcome)
        if welcome.trouble:
            return 2
        memory = met.store()
        with driver.machine(plan, met.devices) as (devices, pages):
            try:
                source = default_source(plan.devices[0].kind)
                saved = checkpoint.load(options.resume, plan.tasks)
                shared = Shared(memory.flat, world.node, world.rank == world.first(world.node))
                store = HostStore(plan, tasks, pages, source, saved, cut, None, shared)
                for device in devices.values():
                    device.limit(sum(task.buffer_bytes for task in store.tasks.values()))
                driver.warm_up(plan)
            except GantryError as error:
                mesh.send(0, Ready(str(error)))
                return error.exit_code
            clock = _clock(mesh, welcome.machine)
            mesh.send(0, Ready())
            peers = Peers(world.rank, mesh, met.rank_of, met.wires(), clock)
            own = Recorder(plan, 0.0, world.rank), options, peers, met.carrier(memory)
            worker = Worker(plan, store, devices, *own)
            mesh.listen(worker.hear)
            with heard(_ENDS, lambda *_: None):  # process 0 hears of them, too, and says what ends
                return 1 if worker.work() else 0


@contextmanager
def _met(plan: Plan, world: World) -> Iterator[_Met]:
    """The processes, connected; UsageError where they do not come together."""
    _divisible(plan, world.ranks(plan).__getitem__)
    _with_agent(world)
    limit, run = timedelta(seconds=_MEET_S), next(_RUNS)
    try:
        store, _, _ = next(rendezvous("env://", timeout=limit))
        address = own_address(world, PrefixStore(f"gantry {run}", store), os.environ)
        if interface := interface_of(address):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        dist.init_process_group(
            "gloo",
            store=PrefixStore(f"gloo {run}", store),
            rank=world.rank,
            world_size=world.size,
            timeout=limit,
        )
        mesh = Mesh(world.rank, world.size, PrefixStore(f"gantry {run}", store), address)
    except (RuntimeError, OSError, EOFError) as error:
        raise UsageError(
            f"the {world.size} processes do not come together: {text_of(error)}"
        ) from None
    try:
        yield _Met(plan, world, mesh)
    finally:
        mesh.close()
        dist.destroy_process_group()


def _clock(mesh: Mesh, machine: str) -> Clock:
    """The clock of process 0, which runs on this machine."""
    clock = Clock(same=machine == machine_id())
    for _ in range(_QUESTIONS if clock.due() else 0):
        mesh.send(0, Time(time.perf_counter()))
        answer = mesh.receive(0)
        assert isinstance(answer, Time), answer
        assert answer.there is not None, "process 0 knows its own time"
        clock.note(answer.asked, answer.there)
    return clock


def _divisible(plan: Plan, rank_of: Callable[[int], int]) -> None:
    """UsageError for what only one process can do."""
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


def _with_agent(world: World) -> None:
    """End with the agent that has started this process, however that ends: process 0 as if
    interrupted, the others with it, or some time later."""
    agent = os.getppid()

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(_LOOK_S)
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_LATE_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="agent").start()


def _compared(met: _Met, inputs: Inputs) -> str:
    """The first thing that is not the same in all processes."""
    for rank in met.mesh.others:
        hello = met.mesh.expect(rank, Hello)
        for name in sorted(inputs.keys() | hello.inputs.keys()):
            own, theirs = inputs.get(name, "none"), hello.inputs.get(name, "none")
            if own != theirs:
                return (
                    f"process {rank} has another {name} than process 0: {theirs} and {own}; start "
                    "all of them with the same files"
                )
    return ""
