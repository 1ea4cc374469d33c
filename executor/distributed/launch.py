"""A run of several processes, from their connections to their end.

all     connect, once they have agreed on what they are given
all     of a node map its host store, which its first process makes
all     open their devices, build their models, connect devices and stores
lead    conducts; the others do what it says, and end as it does
"""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from math import inf
from types import FrameType

import torch
import torch.distributed as dist

from executor import driver
from executor.devices import backend_of, default_source
from executor.distributed import signals
from executor.distributed.fetching import Stores
from executor.distributed.lead import Lead
from executor.distributed.links import (
    GroupWire,
    Mesh,
    Pair,
    wires,
)
from executor.distributed.meeting import Board
from executor.distributed.messages import Bye, Join, Ready, Welcome
from executor.distributed.stores import SharedMemory, node_store
from executor.distributed.team import Peers
from executor.distributed.worker import Worker
from executor.distributed.world import World, machine_id
from executor.errors import (
    ProcessError,
    RunError,
    UsageError,
    exit_code_of,
    one_line,
    text_of,
)
from executor.records import Options, PartLog, Result, checkpoint
from executor.replay import Recorder
from executor.shards import Cutter, HostStore, Shared
from executor.workload import Task, reading
from plans.order import Reached, rest
from plans.part import Part
from plans.schema import Plan
from profiles import console
from profiles.console import Interrupted, heard

_QUESTIONS = 20  # for the time, before a run begins
_FETCH_S = 60.0  # that nothing may come of what is fetched to be written
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STUCK_S = 5.0  # that getting ready may go on when another process is gone
_PART_S = 1.0  # until the others have heard that the run is over
_NEVER = timedelta(days=1000)  # a message may be as late as the op that it tells of
_NEWS_S = 0.5  # that come before a signal, where that follows from them


Connected = tuple[dict[Pair, GroupWire], dist.ProcessGroup | None, Stores]


@dataclass(frozen=True)
class Met:
    """The processes of a run, connected. silence_s: that is too long without a sign of one;
    prepare_s: that they may take to build their models; ahead: seconds by which the clock of
    process 0 is ahead."""

    world: World
    mesh: Mesh
    silence_s: float
    prepare_s: float
    ahead: float

    def connect(self, part: Part, memory: SharedMemory, options: Options) -> Connected:
        """The wires of this process' devices, the group for signals between nodes, and the stores
        of all nodes, of which `memory` is its own."""
        try:
            backend = backend_of(part.kind)
            made = wires(part, backend)
            several = self.world.nodes > 1
            letters = dist.new_group(backend="gloo", timeout=_NEVER) if several else None
            if letters:
                self.mesh.hold(letters)
            return made, letters, Stores(part, memory, options.stall_seconds or _FETCH_S)
        except (RuntimeError, RunError) as error:
            why = self.mesh.loss(_NEWS_S) or f"devices cannot be connected: {text_of(error)}"
            raise RunError(why) from None

    def store(self, part: Part) -> SharedMemory:
        return node_store(self.world, self.mesh, signals.board_bytes(part))

    def part(self, plan: Plan, reached: Reached | None) -> Part:
        """The part of this process of a plan, or of what is left of it."""
        left = rest(plan, reached) if reached else plan
        return Part(left, self.world.ranks(plan), self.world.rank)


class _Others:
    """The processes that this one leads."""

    def __init__(self, plan: Plan, options: Options, met: Met, ready: threading.Event) -> None:
        self._lead: Lead | None = None
        self._ready = ready
        self._met, self._options = met, options
        reached = options.earlier.reached if options.earlier else None
        self.part = met.part(plan, reached)
        for rank in met.mesh.others:
            met.mesh.send(rank, Welcome(reached))
        self._memory = met.store(self.part)
        self.store = Shared(self._memory.flat, fills=True, bring=self._bring)

    def joined(self) -> Lead:
        met, mesh, part = self._met, self._met.mesh, self.part
        self._join()
        wires, letters, stores = met.connect(part, self._memory, self._options)
        self._lead = Lead(part, mesh, wires, signals.Board(part, self._memory), letters, stores)
        return self._lead

    def limited(self) -> None:
        assert self._lead, "they have joined"
        self._join()
        self._ready.set()
        self._met.mesh.listen(self._lead.hear)

    def _join(self) -> None:
        """Let all go on once all are ready; ProcessError for one that cannot be."""
        mesh = self._met.mesh
        waiting, deadline = set(mesh.others), time.monotonic() + self._met.prepare_s
        while waiting:
            rank, message = mesh.receive(waiting, deadline)
            assert isinstance(message, Ready), message
            if message.trouble:
                raise ProcessError(f"process {rank}: {message.trouble}", message.code)
            waiting.discard(rank)
        for rank in mesh.others:
            mesh.send(rank, Join())

    def _bring(self, task: str) -> None:
        assert self._lead, "nothing is trained before"
        self._lead.bring(task)


def lead(plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter, met: Met) -> Result:
    """`driver.run` in process 0 of several."""
    with _getting_ready(met) as ready:
        return driver.run(plan, tasks, options, cut, _Others(plan, options, met, ready))


def goodbye(met: Met, code: int) -> int:
    """Let the others end with this exit code, and see that they do; the code of this process, which
    fails with one that does not end well."""
    mesh = met.mesh
    if not code:
        _disconnect()  # from when the others have ended nobody watches this process
    for rank in mesh.others:
        with suppress(RunError):
            mesh.send(rank, Bye(code))
    left = mesh.part(_PART_S if code else _PART_S + met.silence_s)
    if code:
        return code
    wrong = [text for rank, text in mesh.gone.items() if rank not in mesh.codes]
    for rank in left:
        wrong.append(f"process {rank} has not ended for {met.silence_s:g} s")
    for text in wrong:
        code = console.fail(f"all is trained and written, but {text}", 1)
    return code


def follow(plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter, met: Met) -> int:
    """Do what process 0 says until the end; the exit code. It tells what went wrong, unless it is
    gone: RunError."""
    try:
        code = _followed(plan, tasks, options, cut, met)
    except RunError:
        if met.mesh.loss(_NEWS_S) and 0 in met.mesh.codes:
            return met.mesh.codes[0]
        raise
    if not code:
        _disconnect()
    with suppress(RunError):
        met.mesh.send(0, Bye(code))
    return code


def _followed(plan: Plan, tasks: Sequence[Task], options: Options, cut: Cutter, met: Met) -> int:
    mesh, world = met.mesh, met.world
    with ExitStack() as stack:
        joined = stack.enter_context(_getting_ready(met))
        welcome = mesh.expect(0, Welcome)
        reached = welcome.reached
        part = met.part(plan, reached)
        memory = met.store(part)
        try:
            devices, pages = stack.enter_context(driver.machine(part))
            source = default_source(part.kind)
            saved = checkpoint.load(options.folder, part.tasks)
            shared = Shared(memory.flat, world.rank == world.first(world.node))
            store = HostStore(part, tasks, pages, source, saved, cut, None, shared)
            driver.warm_up()
            ready = Ready()
        except Exception as error:
            ready = Ready(text_of(error), exit_code_of(error))
        mesh.send(0, ready)
        mesh.expect(0, Join)
        wires, letters, stores = met.connect(part, memory, options)
        try:
            driver.limit(devices, store)
        except RunError as error:
            ready = Ready(text_of(error), exit_code_of(error))
        mesh.send(0, ready)
        mesh.expect(0, Join)
        joined.set()
        peers = Peers(part, mesh, wires, signals.Board(part, memory), letters)
        recorder = Recorder(part.tasks, 0.0, world.rank)
        log = PartLog(options.folder, world.rank)
        worker = Worker(part, store, devices, recorder, options, peers, stores, log.note, met.ahead)
        mesh.listen(worker.hear)
        gc.freeze()
        with closing(log), reading(tasks):
            return worker.work()


@contextmanager
def _getting_ready(met: Met) -> Iterator[threading.Event]:
    """An event: until it is set, this process ends as it is when another one is gone. Models may
    take minutes to build, torch waits as long for a process that is gone, and neither can be
    interrupted."""
    ready = threading.Event()
    mesh, rank = met.mesh, met.world.rank

    def watch() -> None:
        while not ready.wait(_NEWS_S):
            if mesh.gone and not ready.wait(_STUCK_S):
                if mesh.tells:
                    console.fail(f"process {rank}: {mesh.loss(0)}" if rank else mesh.loss(0), 1)
                os._exit(mesh.codes.get(0, 1))

    threading.Thread(target=watch, daemon=True, name="getting ready").start()
    try:
        yield ready
    finally:
        ready.set()


def _grouped(board: Board) -> None:
    """Let torch.distributed connect all processes; RunError where that cannot be."""
    world = board.world
    if world.nodes == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit, own = timedelta(seconds=board.limit_s), (world.rank, world.size)
    try:
        dist.init_process_group(
            "gloo", store=board.store("gloo"), rank=own[0], world_size=own[1], timeout=limit
        )
    except (RuntimeError, OSError, EOFError) as error:
        raise RunError(f"the processes cannot connect: {one_line(error)}") from None


def _ahead(board: Board) -> float:
    """Seconds by which the clock of process 0 is ahead of this one's, which are the same on one
    machine: half way between question and answer, by the shortest way there and back."""
    me, machines = board.world.rank, board.gather("machine", machine_id())
    best, ahead, now = inf, 0.0, torch.zeros(1, dtype=torch.float64)
    for rank in (rank for rank, one in enumerate(machines) if one != machines[0]):
        for _ in range(_QUESTIONS if me in (0, rank) else 0):
            asked = time.perf_counter()
            if me == 0:
                dist.recv(now, rank)
                dist.send(now.fill_(time.perf_counter()), rank)
                continue
            dist.send(now, 0)
            dist.recv(now, 0)
            answered = time.perf_counter()
            if answered - asked < best:
                best, ahead = answered - asked, float(now) - (asked + answered) / 2
    return ahead


@contextmanager
def connected(board: Board, silence_s: float) -> Iterator[Met]:
    """The processes, connected by way of their notes; RunError where that cannot be. One that is
    silent for so long counts as gone.

    Process 0 alone hears of signals meanwhile, and the others of what it makes of them. torchrun
    ends all when one has ended: a signal that follows from that is not heard, but what it follows
    from."""
    world = board.world
    try:
        _grouped(board)
        ahead = _ahead(board)
        pids = enumerate(map(int, board.gather("pid", str(os.getpid()))))
        mates = {rank: pid for rank, pid in pids if rank in world.mates and rank != world.rank}
        mesh = Mesh(world, partial(board.store, "messages"), mates, silence_s)
    except RuntimeError as error:
        raise RunError(f"the processes cannot connect: {one_line(error)}") from None

    def hear(number: int, frame: FrameType | None) -> None:
        deadline = time.monotonic() + _NEWS_S
        while not world.rank and not mesh.gone:
            if time.monotonic() > deadline:
                raise Interrupted(number)
            time.sleep(_NEWS_S / 20)

    with heard(_ENDS, hear):
        try:
            yield Met(world, mesh, silence_s, board.prepare_s, ahead)
        finally:
            mesh.close()
            _disconnect()


def _disconnect() -> None:
    """End torch's connections, if that can be: it waits for ops, where some do not end."""
    if dist.is_initialized():
        end = threading.Thread(target=dist.destroy_process_group, daemon=True)
        end.start()
        end.join(_PART_S)


def divisible(plan: Plan, world: World, *, keep_going: bool) -> None:
    """UsageError for what only one process can do, and where devices or nodes do not fit."""
    rank_of = world.ranks(plan).__getitem__
    for segment in plan.segments:
        if len(set(map(rank_of, segment.devices))) > 1:
            if keep_going and backend_of(plan.devices[0].kind) == "nccl":
                raise UsageError(
                    "--keep-going cannot drop a task that GPUs of several processes train: the "
                    "next one on them would get what it has sent; leave --keep-going out, or run "
                    "without torchrun"
                )
            for name in plan.trained(segment):
                if None in (shard.rng_draws for shard in plan.task(name).shards):
                    raise UsageError(
                        f"task {name} draws a varying number of random numbers, so that one "
                        "process has to train it; build with a --layout of as many devices as a "
                        "process has, or run without torchrun"
                    )
