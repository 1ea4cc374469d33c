"""`run` in one of several processes that torchrun has started.

Before they connect, all of them say by way of torchrun's store how their preparations went: what is
wrong in one of them ends all, with one message and the same exit code.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import torch

from executor import distributed, run
from executor.conducting import patience_s
from executor.cutting import left_out, planned
from executor.errors import ProcessError, RunError, UsageError, exit_code_of
from executor.records import Options, Result, again, checkpoint
from executor.workload import Task, Wanted, fingerprint_of
from plans.schema import Plan
from profiles import console
from profiles.codec import sha256
from profiles.errors import GantryError
from profiles.schema import Workload
from profiles.units import show_us

S = TypeVar("S", bound=msgspec.Struct)
Given = tuple[Plan, Sequence[Task], Options]
Train = Callable[[Plan, Sequence[Task], Options], Result]

_LIMIT_S = 60.0  # of silence of a process, before all are connected
_LATE_S = 10.0  # that a process may come later than one that has failed
_GRACE_S = 2.0  # that a process waits for the reason why torchrun ends it
_LOOK_S = 1.0  # between two looks at whether the agent is there
_END_S = 30.0  # that a run may take to end without it


class Asked(Protocol):
    """A run that the command line asks for. stall_seconds: its own limit of silence."""

    @property
    def stall_seconds(self) -> float | None: ...

    def given(self, told: Callable[[Plan, Options], None]) -> Given:
        """All that it is given, loaded, and the plan proven; `told` what is there before that."""

    def options(self) -> Options:
        """Its options, with the plan's file."""

    def proven(self) -> Plan:
        """The plan, which process 0 has proven."""

    def tasks(self, wanted: Iterable[Wanted]) -> Sequence[Task]:
        """These tasks of the plan, loaded."""


class _Wanted(msgspec.Struct, frozen=True):
    """A task that the plan trains."""

    name: str
    workload: Workload
    done: int


class _Work(msgspec.Struct, frozen=True):
    """The message of process 0 about the plan before it has proven it. silence_s: that is too
    long; size, nodes: of the processes that train it."""

    tasks: tuple[_Wanted, ...]
    silence_s: float
    size: int
    nodes: int


class _Note(msgspec.Struct, frozen=True):
    """The outcome of a process' preparations. inputs: what has to be the same in all of them, by
    name."""

    trouble: str = ""
    code: int = 0
    inputs: dict[str, str] = {}


def main(asked: Asked, finish: Callable[[Given, Train], int]) -> int:
    """Train in one of several processes what is asked for; the exit code, one for all. `finish`
    trains by the function that it is given, saves and reports, in process 0."""
    world = distributed.world()
    if world is None:
        plan, tasks, options = asked.given(lambda *_: None)
        return finish((plan, tasks, options), run)
    _end_with_agent(world)
    limit_s = max(_LIMIT_S, asked.stall_seconds or 0)
    try:
        board = distributed.meet(world, limit_s)
        if world.rank == 0:
            return _lead(board, asked, finish)
        return _follow(board, asked)
    except (GantryError, console.Interrupted) as error:
        if world.rank == 0:
            raise
        if isinstance(error, distributed.AbsentError) and error.teller == world.rank:
            console.fail(f"process {world.rank}: {error}", error.exit_code)
        return exit_code_of(error)  # process 0 says it


def _lead(board: distributed.Board, asked: Asked, finish: Callable[[Given, Train], int]) -> int:
    world, verdict = board.world, _Note("process 0 has ended", 1)
    silence_s, idle = 0.0, range(0)

    def told(plan: Plan, options: Options) -> None:
        nonlocal world, silence_s, idle
        if options.book:
            world = board.world.of(plan)
        distributed.divisible(plan, world, keep_going=options.keep_going)
        silence_s = patience_s(plan, options)
        tasks = tuple(_Wanted(task.name, task.workload, task.done) for task in plan.tasks)
        _say(board, "work", _Work(tasks, silence_s, world.size, world.nodes))
        idle, board.world = range(world.size, board.world.size), world

    try:
        plan, tasks, options = asked.given(told)
        _judge(board, _inputs(plan.tasks, tasks, options))
        options = again(plan, options)
        if options.earlier is None:
            _warn_of_loss(plan, world)
        verdict = _Note()
    except GantryError as error:
        verdict = _Note(str(error), error.exit_code)
        console.fail(verdict.trouble, verdict.code)
        # Others of this node may end before those of another one have heard: torchrun then ends
        # this process, whose exit code is known.
        with console.heard((signal.SIGTERM,), lambda *_: None), suppress(GantryError):
            _say(board, "verdict", verdict)
            board.wait(_notes(world), _LATE_S)
        return verdict.code
    except KeyboardInterrupt as error:
        verdict = _Note("interrupted", exit_code_of(error))
        raise
    finally:
        _say(board, "verdict", verdict)
    code = 1
    with distributed.connected(board, silence_s) as met, left_out():
        try:
            code = finish((plan, tasks, options), partial(distributed.lead, cut=planned, met=met))
        except GantryError as error:
            code = console.fail(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            code = exit_code_of(error)
            raise
        finally:
            code = distributed.goodbye(met, code)
            _dismiss(board, idle, code)
    return code


def _follow(board: distributed.Board, asked: Asked) -> int:
    world = board.world
    note = _Note("its preparations ended", 1)
    try:
        options = asked.options()
        work = _heard(board, "work", _Work)
        if isinstance(work, _Note):
            return work.code
        if world.rank >= work.size:
            return _idle(board)
        board.world = world = distributed.World(world.rank, work.size, work.nodes)
        tasks, silence_s = asked.tasks(work.tasks), work.silence_s
        inputs = _inputs(work.tasks, tasks, options)
        note = _Note(inputs=inputs)
    except GantryError as error:
        note = _Note(str(error), error.exit_code)
    finally:
        _say(board, f"note of process {world.rank}", note)
    verdict = _heard(board, "verdict", _Note)
    if verdict.code:
        return verdict.code
    with distributed.connected(board, silence_s) as met, left_out():
        try:
            return distributed.follow(asked.proven(), tasks, options, planned, met)
        except GantryError as error:
            if met.mesh.tells:
                console.fail(f"process {world.rank}: {error}", 1)
            raise


def _idle(board: distributed.Board) -> int:
    """Wait for the end of a run that the plan trains without this process; its exit code."""

    def over() -> _Note | None:
        texts = {key: board.read(key) for key in ("over", "verdict")}
        notes = {key: msgspec.json.decode(t, type=_Note) for key, t in texts.items() if t}
        return next((note for key, note in notes.items() if key == "over" or note.code), None)

    try:
        code = board.until(over, lambda: [0], inf).code
        board.say(f"over in process {board.world.rank}", "")
    except RuntimeError:  # the store is gone, and with it the others
        return 1
    return code


def _dismiss(board: distributed.Board, idle: Iterable[int], code: int) -> None:
    """Let processes that have nothing to train end with this code."""
    with suppress(RuntimeError, RunError):
        _say(board, "over", _Note("", code))
        board.wait({f"over in process {rank}": rank for rank in idle}, _LATE_S)


def _notes(world: distributed.World) -> dict[str, int]:
    return {f"note of process {rank}": rank for rank in range(1, world.size)}


def _say(board: distributed.Board, key: str, note: msgspec.Struct) -> None:
    board.say(key, msgspec.json.encode(note).decode())


def _judge(board: distributed.Board, inputs: dict[str, str]) -> None:
    """UsageError, or that of a process, where they are not prepared alike."""
    for rank, text in enumerate(board.wait(_notes(board.world), board.prepare_s).values(), 1):
        note = msgspec.json.decode(text, type=_Note)
        if note.trouble:
            raise ProcessError(f"process {rank}: {note.trouble}", note.code)
        for name in sorted(inputs.keys() | note.inputs.keys()):
            own, theirs = inputs.get(name, "none"), note.inputs.get(name, "none")
            if own != theirs:
                raise UsageError(
                    f"process {rank} has another {name} than process 0: {theirs} and {own}; start "
                    "all of them with the same files and versions"
                )


def _heard(board: distributed.Board, key: str, kind: type[S]) -> S | _Note:
    """The note of process 0 by this key, or its verdict on all preparations if that comes first. A
    signal counts if it says nothing soon: torchrun ends all processes when one has ended."""
    signals: list[tuple[int, float]] = []

    def look() -> dict[str, str] | None:
        if signals and time.monotonic() > signals[0][1] + _GRACE_S:
            raise console.Interrupted(signals[0][0])
        # In this order: the verdict comes last.
        found = {name: board.read(name) for name in ("verdict", key)}
        return {name: text for name, text in found.items() if text is not None} or None

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with console.heard(kinds, lambda number, _: signals.append((number, time.monotonic()))):
        found = board.until(look, lambda: [0], board.prepare_s)
    if key in found:
        return msgspec.json.decode(found[key], type=kind)
    return msgspec.json.decode(found["verdict"], type=_Note)


def _warn_of_loss(plan: Plan, world: distributed.World | None) -> None:
    """Say what a start again would lose, if that may be most of the run, and where none can be."""
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return
    whole = max(segment.end_us for segment in plan.segments)
    longest = max(segment.end_us - segment.start_us for segment in plan.segments)
    if 2 * longest > whole:
        console.warn(
            f"a start again may lose {show_us(longest)} of {show_us(whole)}: states are kept where "
            "segments end; build with --segment-steps N to keep them every N steps"
        )
    if world and world.nodes > 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        console.warn(
            "no other machine can come for one that dies; start torchrun with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        )


@cache
def _end_with_agent(world: distributed.World) -> None:
    """End with the agent that has started this process, however that ends: process 0 as if
    interrupted, the others of its node with it, or some time later; those of other nodes at once,
    so that the rest hears of it and goes on without them."""
    agent = os.getppid()

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(_LOOK_S)
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0 if world.node else _END_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="agent").start()


def _inputs(tasks: Sequence[Wanted], loaded: Sequence[Task], options: Options) -> dict[str, str]:
    """Hashes that must be the same in all processes, by name: of files, of what tasks train."""
    sources = {f"task {task.name}": fingerprint_of(task) for task in loaded}
    folder = options.folder or Path()
    files = [checkpoint.path_of(folder, task.name) for task in tasks if task.done]
    kept = {f"checkpoint {file.name}": checkpoint.identity(file) for file in files}
    own = {"plan": sha256(options.plan_file or b""), "version of torch": str(torch.__version__)}
    return {**own, **sources, **kept}
