"""`run` in one of several processes that torchrun has started.

Before they connect, all of them say by way of torchrun's store how their preparations went: what is
wrong in one of them ends all, with one message and the same exit code.
"""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from executor import distributed, run
from executor.conducting import patience_s
from executor.cutting import left_out, planned
from executor.errors import ProcessError, UsageError, exit_code_of, text_of
from executor.profiling import across
from executor.records import Laps, Options, Result, checkpoint, earlier
from executor.workload import Task, Wanted, fingerprint_of
from plans.schema import Plan
from profiles import console
from profiles.errors import FormatError, GantryError
from profiles.schema import Workload
from profiles.units import show_us

S = TypeVar("S", bound=msgspec.Struct)
Given = tuple[Plan, Sequence[Task], Options]
Train = Callable[[Plan, Sequence[Task], Options], Result]

_MEET_S = 300.0  # until all processes have come and are prepared
_LATE_S = 10.0  # that a process may come later than one that has failed
_ASK_S = 0.05  # between two looks into the store
_GRACE_S = 2.0  # that a process waits for the reason why torchrun ends it
_LOOK_S = 1.0  # between two looks at whether the agent is there
_END_S = 30.0  # that a run may take to end without it


class Asked(Protocol):
    """A run that the command line asks for."""

    def given(self, told: Callable[[Plan, Options], None]) -> Given:
        """All that it is given, loaded, and the plan proven; `told` what is there before that."""

    def options(self) -> Options:
        """Its options, with the hash of the plan's file."""

    def tasks(self, wanted: Iterable[Wanted]) -> Sequence[Task]:
        """These tasks of the plan, loaded."""


class _Wanted(msgspec.Struct, frozen=True):
    """A task that the plan trains."""

    name: str
    workload: Workload
    done: int


class _Work(msgspec.Struct, frozen=True):
    """The message of process 0 about the plan before it has proven it. silence_s: that is too
    long."""

    tasks: tuple[_Wanted, ...]
    silence_s: float


class _Note(msgspec.Struct, frozen=True):
    """The outcome of a process' preparations. inputs: what has to be the same in all of them, by
    name; agent: the torchrun that has started it."""

    trouble: str = ""
    code: int = 0
    inputs: dict[str, str] = {}
    agent: str = ""


def main(asked: Asked, finish: Callable[[Given, Train], int]) -> int:
    """Train in one of several processes what is asked for; the exit code, one for all. `finish`
    trains by the function that it is given, saves and reports, in process 0."""
    world, laps = distributed.world(), Laps()
    laps.lap("imports")
    if world is None:
        plan, tasks, options = asked.given(lambda *_: None)
        laps.lap("plan")
        options = _begun_again(plan, options, (distributed.agent(),), laps)
        return finish((plan, tasks, options), run)
    _end_with_agent(world)
    if world.rank == 0:
        return _lead(world, asked, finish, laps)
    try:
        return _follow(world, asked)
    except (GantryError, console.Interrupted) as error:  # process 0 says it
        return exit_code_of(error)


def measuring() -> AbstractContextManager[across.Others | None]:
    """The processes that torchrun has started, for a profile; None for one alone."""
    world = distributed.world()
    if world is None:
        return nullcontext()

    def interface(store: Store) -> str:
        return distributed.interface_of(distributed.own_address(world, store, os.environ))

    return across.others(world.nodes, interface)


def _lead(
    world: distributed.World, asked: Asked, finish: Callable[[Given, Train], int], laps: Laps
) -> int:
    store, verdict = _meet(world), _Note("process 0 has ended", 1)
    laps.lap("others")
    silence_s = 0.0

    def told(plan: Plan, options: Options) -> None:
        nonlocal silence_s
        distributed.divisible(plan, world)
        silence_s = patience_s(plan, options)
        tasks = tuple(_Wanted(task.name, task.workload, task.done) for task in plan.tasks)
        _say(store, "work", _Work(tasks, silence_s))

    try:
        plan, tasks, options = asked.given(told)
        laps.lap("plan")
        agents = distributed.agent(), *_judge(store, world, _inputs(plan.tasks, tasks, options))
        options = _begun_again(plan, options, agents, laps)
        laps.lap("their preparations")
        verdict = _Note()
    except GantryError as error:
        verdict = _Note(str(error), error.exit_code)
        console.fail(verdict.trouble, verdict.code)
        _say(store, "verdict", verdict)
        _wait(store, _notes(world), _LATE_S)
        return verdict.code
    except KeyboardInterrupt as error:
        verdict = _Note("interrupted", exit_code_of(error))
        raise
    finally:
        _say(store, "verdict", verdict)
    code = 1
    with distributed.connected(world, store, silence_s) as met, left_out():
        laps.lap("connections")
        try:
            code = finish((plan, tasks, options), partial(distributed.lead, cut=planned, met=met))
        except GantryError as error:
            code = console.fail(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            code = exit_code_of(error)
            raise
        finally:
            code = distributed.goodbye(met, code)
    return code


def _follow(world: distributed.World, asked: Asked) -> int:
    store = _meet(world)
    note = _Note("its preparations ended", 1)
    try:
        options = asked.options()
        work = _heard(store, "work", _Work)
        if isinstance(work, _Note):
            return work.code
        tasks, silence_s = asked.tasks(work.tasks), work.silence_s
        inputs = _inputs(work.tasks, tasks, options)
        note = _Note(inputs=inputs, agent=distributed.agent())
    except GantryError as error:
        note = _Note(str(error), error.exit_code)
    finally:
        _say(store, _notes(world)[world.rank - 1], note)
    verdict = _heard(store, "verdict", _Note)
    if verdict.code:
        return verdict.code
    with distributed.connected(world, store, silence_s) as met, left_out():
        try:
            return distributed.follow(tasks, options, planned, met)
        except GantryError as error:
            if met.mesh.tells:
                console.fail(f"process {world.rank}: {error}", 1)
            raise


def _meet(world: distributed.World) -> Store:
    """torchrun's store, for this run of these processes alone; UsageError where they do not meet.

    What an earlier start has left in it is there as well. So each process asks process 0 by a
    number of its own for the name of the run, and all wait until everybody knows it."""
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=_MEET_S)))
        if world.rank:
            own = secrets.token_hex(8)
            store.set(f"gantry asks {world.rank}", own)
            _wait(store, [f"gantry answers {own}"], _MEET_S)
            name = store.get(f"gantry answers {own}").decode()
            made = PrefixStore(name, store)
            made.set(f"here {world.rank}", "")
            return made
        name = secrets.token_hex(8)
        made = PrefixStore(name, store)
        asks = [f"gantry asks {rank}" for rank in range(1, world.size)]
        here = [f"here {rank}" for rank in range(1, world.size)]
        deadline = time.monotonic() + _MEET_S
        while late := _wait(made, here, _ASK_S):
            if time.monotonic() > deadline:
                raise UsageError(f"{len(late)} processes have not come within {_MEET_S:g} s")
            for ask in asks:
                if store.check([ask]):
                    store.set(f"gantry answers {store.get(ask).decode()}", name)
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the store of torchrun cannot be reached: {text_of(error)}") from None
    return made


def _notes(world: distributed.World) -> list[str]:
    return [f"note of process {rank}" for rank in range(1, world.size)]


def _say(store: Store, key: str, note: msgspec.Struct) -> None:
    store.set(key, msgspec.json.encode(note).decode())


def _wait(store: Store, keys: Sequence[str], seconds: float) -> list[str]:
    """Wait for these keys, no longer than so; those that are not there."""
    deadline = time.monotonic() + seconds
    while not store.check(list(keys)):
        if time.monotonic() > deadline:
            return [key for key in keys if not store.check([key])]
        time.sleep(_ASK_S)
    return []


def _judge(store: Store, world: distributed.World, inputs: dict[str, str]) -> list[str]:
    """The agents of the other processes; UsageError, or that of a process, where they are not
    prepared alike."""
    agents = []
    if late := _wait(store, _notes(world), _MEET_S):
        raise UsageError(f"not heard within {_MEET_S:g} s how preparations went: {', '.join(late)}")
    for rank, key in enumerate(_notes(world), 1):
        note = msgspec.json.decode(store.get(key), type=_Note)
        if note.trouble:
            raise ProcessError(f"process {rank}: {note.trouble}", note.code)
        for name in sorted(inputs.keys() | note.inputs.keys()):
            own, theirs = inputs.get(name, "none"), note.inputs.get(name, "none")
            if own != theirs:
                raise UsageError(
                    f"process {rank} has another {name} than process 0: {theirs} and {own}; start "
                    "all of them with the same files"
                )
        agents.append(note.agent)
    return agents


def _heard(store: Store, key: str, kind: type[S]) -> S | _Note:
    """The note of process 0 by this key, or its verdict on all preparations if that comes first. A
    signal counts if it says nothing soon: torchrun ends all processes when one has ended."""
    signals: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    deadline = time.monotonic() + 2 * _MEET_S
    with console.heard(kinds, lambda number, _: signals.append(number)):
        while not store.check([key]):
            if store.check(["verdict"]) and not store.check([key]):
                return msgspec.json.decode(store.get("verdict"), type=_Note)
            time.sleep(_ASK_S)
            if signals:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
            if time.monotonic() > deadline:
                raise console.Interrupted(signals[0] if signals else signal.SIGTERM)
    return msgspec.json.decode(store.get(key), type=kind)


def _begun_again(plan: Plan, options: Options, agents: Sequence[str], laps: Laps) -> Options:
    """The options of a run that these agents start, maybe again: it goes on from where it was
    kept."""
    options = replace(options, agents=tuple(dict.fromkeys(agents)))
    if not options.checkpoints or not options.log:
        return options
    found = earlier.find(options.log, plan, options.plan_sha256 or "", options.agents)
    if found is None:
        _warn_of_loss(plan)
        return options
    try:
        done = ", ".join(f"{name} after step {step}" for name, step in found.reached.done.items())
        assert found.rest
    except FormatError as error:
        raise UsageError(
            f"the run cannot begin again by itself: {error}; plan what is left: python -m planner "
            f"build PROFILE --from {options.log}"
        ) from None
    console.warn(f"the run begins again and goes on with {done}")
    return replace(options, earlier=replace(found, laps=laps))


def _warn_of_loss(plan: Plan) -> None:
    """Say what a start again would lose, if that may be most of the run."""
    whole = max(segment.end_us for segment in plan.segments)
    longest = max(segment.end_us - segment.start_us for segment in plan.segments)
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and 2 * longest > whole:
        console.warn(
            f"a start again may lose {show_us(longest)} of {show_us(whole)}: states are kept where "
            "segments end; build with --segment-steps N to keep them every N steps"
        )


@cache
def _end_with_agent(world: distributed.World) -> None:
    """End with the agent that has started this process, however that ends: process 0 as if
    interrupted, the others with it, or some time later."""
    agent = os.getppid()

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(_LOOK_S)
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_END_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="agent").start()


def _inputs(tasks: Sequence[Wanted], loaded: Sequence[Task], options: Options) -> dict[str, str]:
    """The hashes of what has to be the same in all processes, by name."""
    sources = {f"task {task.name}": fingerprint_of(task) for task in loaded}
    begun = [task for task in tasks if task.done and options.resume]
    files = [checkpoint.path_of(options.resume or Path(), task.name, task.done) for task in begun]
    kept = {f"checkpoint {file.name}": checkpoint.identity(file) for file in files}
    return {"plan": options.plan_sha256 or "", **sources, **kept}
