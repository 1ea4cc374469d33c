"""The job of an op, made before the first round of its segment: its buffers and the gates that it
waits for are found, and around its run is put what the run's settings ask for.

    run ─▶ metered, profiled ─▶ in a stream's loop between two marks

In the steady state of most runs it is the op's handler and nothing else.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from msgspec import structs
from torch import Tensor
from torch.autograd import profiler

from executor.devices import least_us
from executor.errors import RunError
from executor.replay.activity import Setup
from executor.replay.crossing import Crossing
from executor.replay.gates import Gate, Gates
from executor.replay.ops import OnDone, Run, Work, run_of
from executor.replay.sides import READY, Sides, lane_of, phase_of
from executor.shards import Place
from plans.checker import value_bytes
from plans.schema import Op, Program, Role, Segment
from plans.timing import kinds_of

Around = Callable[[int], AbstractContextManager[object] | None]  # of a round, if it has one


class Job(NamedTuple):
    """An op as its stream's thread sees it. waits: ops, their gates, and how many rounds before;
    least_us: it lasts no shorter; metered: its transients are measured in round 0."""

    id: str
    waits: tuple[tuple[str, Gate, int], ...]
    run: Run
    gate: Gate
    least_us: int
    metered: bool


@dataclass(frozen=True, eq=False)
class Maker:
    """Makes the jobs of a segment. steps: of each task, what round 0 trains. metered: transients of
    ops are measured in the first round. Only with other processes there is a `crossing`."""

    setup: Setup
    segment: Segment
    steps: Mapping[str, int]
    sides: Sides
    gates: Gates
    crossing: Crossing | None
    metered: bool

    @cached_property
    def places(self) -> dict[int, Place]:
        """The devices of this process, by their numbers in the program."""
        places, devices = self.setup.places, enumerate(self.segment.devices)
        return {number: places[device] for number, device in devices if device in places}

    @cached_property
    def flats(self) -> dict[str, Tensor]:
        """The bytes (uint8) of this process' buffers, by name: on its devices and on the host."""
        views = {
            b.name: self.places[int(b.space)].device.slab[b.offset : b.offset + b.bytes]
            for b in self.program.buffers
            if int(b.space) in self.places
        }
        return {**self.setup.store.flats, **views}

    @cached_property
    def tokens(self) -> dict[str, tuple[int, ...]]:
        """The most of each microbatch, by phase."""
        return {phase_of(n): kind.tokens for n, kind in enumerate(kinds_of(self.program))}

    @property
    def program(self) -> Program:
        return self.sides.program

    def jobs(self) -> dict[str, dict[str, list[Job]]]:
        """By stream and phase."""
        found: dict[str, dict[str, list[Job]]] = {name: {} for name in self.sides.streams}
        for phase, ops in self.sides.phases.items():
            streams = {op.id: op.stream for op in ops}
            for op in ops:
                found[op.stream].setdefault(phase, []).append(self._job(phase, op, streams))
        return found

    def _job(self, phase: str, op: Op, streams: Mapping[str, str]) -> Job:
        """The job of an op; what comes before it in its own stream it need not wait for."""
        lane, ready = lane_of(op.stream), op.id.endswith(READY)
        number = lane[1] if lane else op.queue.device
        known = structs.replace(op, id=op.id.removesuffix(READY)) if ready else op
        work = self._work(phase, known, number)
        run = self._crossed(phase, work, ready=ready)
        waits = tuple(
            (before, self.gates[phase, before], lag)
            for before, lag in self.sides.waits(op)
            if streams.get(before) != op.stream
        )
        gate = self.gates[phase, op.id]
        least = 0 if lane else least_us(work.place.device.spec, op)
        return Job(op.id, waits, around(work, run), gate, least, work.metered)

    def _work(self, phase: str, op: Op, number: int) -> Work:
        """The op on device `number` of the program, with its buffers, found by name and cut to the
        bytes of the value in each role; of an X those that this process has."""
        name, place, memory = op.name, self.places[number], self.program.memory[number]
        task = self.setup.tasks[name.task]
        evaluates, tokens = self.program.evaluates, self.tokens.get(phase, ())
        if name.kind in "FBIW":
            task.replicas.on(name.number, place).train(not evaluates)
        place.took(memory.slab_bytes)

        def cut(roles: Mapping[Role, str]) -> dict[str, Tensor]:
            here = {role: self.flats[b] for role, b in roles.items() if b in self.flats}
            return {r: f[: value_bytes(name, r, task.plan, tokens)] for r, f in here.items()}

        feed = task.feed(evaluates=evaluates)
        return Work(
            op,
            name,
            task,
            feed,
            place,
            first_step=feed.number(self.steps[name.task]),
            memory=memory,
            metered=self.metered and op.stream.endswith("compute"),
            reads=cut(op.reads),
            writes=cut(op.writes),
            evaluates=evaluates,
            halves=f"{name.task}.{name.item}{name.number}.I{name.index}" in self.sides.in_round,
        )

    def _crossed(self, phase: str, work: Work, *, ready: bool) -> Run:
        """The op itself, or the side of an X that this process has in it."""
        op, devices, crossing = work.op, self.segment.devices, self.crossing
        if crossing and (lane := lane_of(op.stream)):
            ends, sender = (devices[lane[0]], devices[lane[1]]), self.sides.ranks[lane[0]]
            return (
                crossing.asker(work, ends)
                if ready
                else crossing.receiver(phase, work, ends, sender)
            )
        if crossing and self.sides.sends(op):
            (target,) = (self.sides.spaces[name] for name in op.writes.values())
            ends, receiver = (devices[op.queue.device], devices[target]), self.sides.ranks[target]
            return crossing.sender(phase, work, ends, receiver)
        return crossing.known(work, run_of(work)) if crossing else run_of(work)


def around(work: Work, run: Run) -> Run:
    """The run of an op with what the settings put around it."""
    contexts: list[Around] = []
    if profiler._is_profiler_enabled:  # by who called the run: its ranges are named like ops
        contexts.append(lambda _: profiler.record_function(work.op.id))
    if work.metered:
        contexts.append(lambda r: _metered(work) if work.is_metered(r) else None)
    return partial(_within, run, contexts) if contexts else run


def _within(run: Run, contexts: list[Around], round_index: int) -> OnDone | None:
    """Run within these contexts of the round, the first one outside."""
    with ExitStack() as held:
        for context in contexts:
            if (one := context(round_index)) is not None:
                held.enter_context(one)
        return run(round_index)


@contextmanager
def _metered(work: Work) -> Iterator[None]:
    """Measure the op's transients; RunError when they exceed the device's reserve."""
    name, place, memory, meter = work.name, work.place, work.memory, work.place.meter
    key = work.task.plan.name, name.number, name.index
    keeps = name.kind == "F" and work.activations != "recompute" and not work.evaluates
    makes = key if keeps or name.kind == "I" else None
    with meter.op(makes, key if name.kind in "BIW" else None):
        yield
    place.took(memory.slab_bytes + meter.taken_bytes)
    if meter.taken_bytes > memory.reserve_bytes + place.device.slack_bytes:
        live = f", {meter.graph_bytes} of them in live graphs," if meter.graph_bytes else ""
        raise RunError(
            f"took {meter.taken_bytes} bytes beside its buffers{live} but its program reserves "
            f"{memory.reserve_bytes} on device {place.number}; "
            "profile again or lower the microbatch"
        )
