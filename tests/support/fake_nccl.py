"""Processes of one machine with fake GPUs, as threads of this one: each replays its part of a plan,
and bytes go between them as NCCL moves them.

What is sent, and what is received, are launched into the current stream of their device and hold it
until both are there. So a receive that is launched before its send is refused: the device would do
nothing else, and might never come to what the send waits for.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
from support.fake_cuda import Memory
from torch import Tensor

from executor.cutting import planned
from executor.distributed.signals import Board, board_bytes
from executor.distributed.stores import SharedMemory
from executor.distributed.team import Peers
from executor.driver import machine
from executor.replay import (
    Failure,
    Halt,
    Recorder,
    SegmentRun,
    Settings,
    Setup,
    programs_of,
    task_states,
)
from executor.shards import HostStore, Shared, places_of
from executor.workload.task import Task
from plans.part import Part
from plans.schema import Plan

links = import_module("executor.distributed.links.wires")
_LONG_S = 60


class Nccl:
    """What stands in for torch.distributed in `links.wires`: groups of so many processes, each a
    thread that says its rank first."""

    def __init__(self, memory: Memory, size: int) -> None:
        self.own = threading.local()
        self._memory, self._size = memory, size
        self._sent: dict[int, queue.Queue[SimpleNamespace]] = {}
        self._devices: dict[tuple[int, bool], int] = {}

    def get_rank(self) -> int:
        return int(self.own.rank)

    def get_world_size(self) -> int:
        return self._size

    def new_group(self, ranks: Sequence[int], backend: str) -> int:
        """Its number, which is the same in all processes."""
        self.own.groups += 1
        self._sent.setdefault(self.own.groups, queue.Queue())
        return int(self.own.groups)

    def send(self, source: Tensor, to: int, group: int, tag: int | None = None) -> None:
        one = SimpleNamespace(source=source, begun=threading.Event(), over=threading.Event())
        self._launch(source, (group, True), one.begun.set, partial(_wait, one.over))
        self._sent[group].put(one)

    def recv(self, target: Tensor, sender: int, group: int, tag: int | None = None) -> None:
        first = tag is None  # both sides connect
        assert first or self._sent[group].qsize(), "a receive is launched before its send"
        one = self._sent[group].get(timeout=_LONG_S)
        copy = partial(target.copy_, one.source)
        self._launch(target, (group, False), partial(_wait, one.begun), copy, one.over.set)

    def _launch(self, flat: Tensor, side: tuple[int, bool], *steps: Callable[[], object]) -> None:
        device = self._memory.index(flat)
        assert device is not None, "NCCL moves what is in slabs"
        assert self._devices.setdefault(side, device) == device, "connected on another device"
        self._memory.current(device).put(lambda: [step() for step in steps])


def _wait(event: threading.Event) -> None:
    assert event.wait(_LONG_S), "the other side never comes"


def replayed(
    monkeypatch: pytest.MonkeyPatch,
    memory: Memory,
    plan: Plan,
    tasks: Sequence[Task],
    ranks: Sequence[int],
) -> HostStore:
    """The host store when processes of which these have the devices have replayed a plan."""
    parts = [Part(plan, ranks, me) for me in sorted(set(ranks))]
    drivers = [threading.Lock() for _ in parts]
    memory.drivers[:] = [drivers[rank] for rank in ranks]
    nccl = Nccl(memory, len(parts))
    monkeypatch.setattr(links, "dist", nccl)
    monkeypatch.setattr(links, "sent_by", lambda _, index: memory.slabs[index][:1])
    stores, failures = [SharedMemory(board_bytes(parts[0]))], list[Failure]()
    stores += [SharedMemory(len(stores[0].flat), stores[0].path) for _ in parts[1:]]
    with ExitStack() as stack:
        pairs = zip(parts, stores, strict=True)
        bare = [stack.enter_context(_process(*pair, tasks, failures)) for pair in pairs]

        def connected(setup: Setup) -> Setup:
            part, mesh = setup.part, SimpleNamespace(loss=lambda _: "")
            nccl.own.rank, nccl.own.groups = part.me, 0
            wires, board = links.wires(part, "nccl"), Board(part, stores[part.me])
            return replace(setup, team=Peers(part, mesh, wires, board, None))  # type: ignore[arg-type]

        with ThreadPoolExecutor(len(bare)) as pool:
            setups = list(pool.map(connected, bare))
        for index, segment in enumerate(plan.segments):
            busy = [s for s in setups if s.places.keys() & set(segment.devices)]
            runs = [SegmentRun(index, segment, setup, metered=False) for setup in busy]
            for run in runs:
                run.start()
            deadline = time.monotonic() + _LONG_S
            while not failures and not all(run.ended for run in runs):
                assert time.monotonic() < deadline, [run.states() for run in runs]
                time.sleep(0.001)
            assert not failures, str(failures[0])
        return setups[0].store


@contextmanager
def _process(
    part: Part, shared: SharedMemory, tasks: Sequence[Task], failures: list[Failure]
) -> Iterator[Setup]:
    with machine(part) as (devices, pages):
        source = next(iter(devices.values())).source
        told = Shared(shared.flat, fills=not part.me)
        store = HostStore(part, tasks, pages, source, {}, planned, None, told)
        states = task_states(part, store.tasks, source, None, _unheard, _unheard)
        for state in states.values():
            state.feed(evaluates=False).told = _unheard
        halt = Halt()
        about = Recorder(part.plan.tasks, time.perf_counter(), part.me), halt, Settings()
        try:
            yield Setup(
                *(part, programs_of(part), places_of(devices), states, store),
                *about,
                failures.append,
            )
        finally:
            halt.stop()
            for state in states.values():
                state.stop()


def _unheard(*_: object) -> None:
    """Losses are put together elsewhere."""
