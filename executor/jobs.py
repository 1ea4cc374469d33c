"""A segment as its threads read it: the jobs of each stream, and the tickets that they wait for."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import NamedTuple

from executor.ops import Work
from executor.pace import least_us
from executor.streams import Stream, Ticket
from plans.schema import Op, Program

PHASES = ("enter", "round", "leave")

Exclusive = Callable[[], AbstractContextManager[object]]


class Job(NamedTuple):
    """An op with what it waits for, how long it lasts at least (where compute is emulated) and, if
    ops of a device must not overlap, its locks."""

    work: Work
    tickets: tuple[Ticket, ...]
    least_us: int
    exclusive: Exclusive


def jobs_of(
    phases: Mapping[str, Sequence[Op]],
    rounds: Mapping[str, int],
    works: Mapping[str, Work],
    streams: Mapping[str, Stream],
    exclusive: Callable[[Op], Exclusive],
) -> tuple[dict[str, dict[str, list[Job]]], dict[str, dict[str, int]]]:
    """Jobs per stream and phase, and each stream's count when a phase has ended."""
    jobs: dict[str, dict[str, list[Job]]] = {n: {} for n in streams}
    ends: dict[str, dict[str, int]] = {n: {} for n in streams}
    begun = dict.fromkeys(streams, 0)
    for phase in PHASES:
        lines = {n: [op for op in phases[phase] if op.stream == n] for n in streams}
        tickets = {
            op.id: Ticket(streams[n], begun[n] + i + 1, len(line), op.id)
            for n, line in lines.items()
            for i, op in enumerate(line)
        }
        for n, line in lines.items():
            jobs[n][phase] = [_job(works[op.id], _waits(op, tickets), exclusive(op)) for op in line]
            begun[n] += len(line) * rounds[phase]
            ends[n][phase] = begun[n]
    return jobs, ends


def _job(work: Work, tickets: tuple[Ticket, ...], exclusive: Exclusive) -> Job:
    return Job(work, tickets, least_us(work.place.device.spec, work.op), exclusive)


def _waits(op: Op, tickets: Mapping[str, Ticket]) -> tuple[Ticket, ...]:
    waits = []
    for edge in op.after:
        ticket = tickets[edge.removesuffix("@-1")]
        if edge.endswith("@-1"):
            ticket = ticket._replace(base=ticket.base - ticket.stride)
        waits.append(ticket)
    return tuple(waits)


def exclusive_on(
    program: Program, devices: Sequence[int], locks: Sequence[threading.Lock] | None
) -> Callable[[Op], Exclusive]:
    """What holds, while an op runs, the locks of every device it works on: a transfer's target too.

    `devices` are those of the plan that the program runs on. Without locks nothing is held.
    """
    spaces = {buffer.name: int(buffer.space) for buffer in program.buffers}

    def exclusive(op: Op) -> Exclusive:
        if locks is None:
            return nullcontext
        used = {spaces[name] for name in op.writes.values() if name in spaces}
        numbers = sorted(devices[number] for number in used | {device_of(op.stream)})
        wanted = [locks[number] for number in numbers]
        return lambda: _held(wanted)

    return exclusive


def device_of(stream: str) -> int:
    """The program's device number of a stream: 1 for `1.h2d` and for `host.1`."""
    left, _, right = stream.partition(".")
    return int(right) if left == "host" else int(left)


def _held(locks: Sequence[threading.Lock]) -> AbstractContextManager[object]:
    """Hold all of these locks, always taken in the same order."""
    stack = ExitStack()
    for lock in locks:
        stack.enter_context(lock)
    return stack
