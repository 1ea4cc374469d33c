"""The job of an op, made before the first round of its segment: its buffers are found, and around
its launch is put what the run's settings ask for.

    run ─▶ metered, profiled ─▶ between marks ─▶ told to other processes

In the steady state of most runs an op is launched between two marks and nothing else.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from msgspec import structs
from torch import Tensor
from torch.autograd import profiler

from executor.devices import Mark, Queue, least_us
from executor.errors import RunError
from executor.replay.activity import Setup
from executor.replay.crossing import Crossing
from executor.replay.ops import Run, Work, run_of
from executor.replay.sides import BEGUN, READY, Sides, lane_of, phase_of
from executor.replay.tickets import Job, Launch, OnDone, Stream, Ticket
from executor.shards import Place
from plans.checker import value_bytes
from plans.schema import Op, Program, Role, Segment
from plans.timing import kinds_of

Around = Callable[[int], AbstractContextManager[object] | None]  # of a round, if it has one


@dataclass(frozen=True, eq=False)
class Maker:
    """Makes the jobs of a segment. steps: of each task, what round 0 trains. metered: transients of
    ops are measured in the first round. Only with other processes there is a `crossing`; `check`
    may raise to end a wait."""

    setup: Setup
    segment: Segment
    steps: Mapping[str, int]
    sides: Sides
    streams: Mapping[str, Stream]
    crossing: Crossing | None
    check: Callable[[], None]
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

    def job(self, phase: str, op: Op, own: Ticket, waits: tuple[Ticket, ...]) -> Job | None:
        """The job of an op of a phase, with its own ticket and those that it waits for; None where
        another process runs its stream."""
        if op.stream not in self.sides.own:
            return None
        stream, devices, lane = self.streams[op.stream], self.segment.devices, lane_of(op.stream)
        number = lane[1] if lane else op.queue.device
        if self.crossing and lane and op.id.endswith(READY):
            work, x = None, structs.replace(op, id=op.id.removesuffix(READY))
            ends = devices[lane[0]], devices[lane[1]]
            run = self.crossing.asker(self._work(phase, x, number), op.stream, ends)
            launch = marked(run, stream.queue, 0, self.check)
        else:
            work = self._work(phase, op, number)
            run = self._run(work, waits)
            launch = launch_of(work, run, stream, self.check)
        if self.crossing:
            tells = self.sides.tells.get((phase, op.id), ())
            launch = self.crossing.told(launch, op.stream, own, tells, work)
        return Job(op.id, waits, launch, work is not None and work.metered)

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

    def _run(self, work: Work, waits: Sequence[Ticket]) -> Run:
        """The op itself, or the side of an X that this process has in it."""
        if not self.crossing or work.name.kind != "X":
            return run_of(work)
        devices, lane = self.segment.devices, lane_of(work.op.stream)
        if lane:
            return self.crossing.receiver(work, self.streams[work.op.stream + BEGUN])
        (target,) = (self.sides.spaces[name] for name in work.op.writes.values())
        if target in self.places:
            return run_of(work)
        ends = devices[work.op.queue.device], devices[target]
        return self.crossing.sender(work, f"{work.op.stream}>{target}", waits, ends)


def launch_of(
    work: Work,
    run: Run,
    stream: Stream,
    check: Callable[[], None],
) -> Launch:
    """The launch of an op, which `run` launches, into its stream; `check` may raise to end a
    wait."""
    around: list[Around] = []
    if profiler._is_profiler_enabled:  # by who called the run: its ranges are named like ops
        around.append(lambda _: profiler.record_function(work.op.id))
    if work.metered:
        around.append(lambda r: _metered(work) if work.is_metered(r) else None)
    run = partial(_within, run, around) if around else run
    return marked(run, stream.queue, least_us(work.place.device.spec, work.op), check)


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


def _within(run: Run, around: Sequence[Around], round_index: int) -> OnDone | None:
    """Run within these contexts of the round, the first one outside."""
    with ExitStack() as held:
        for context in around:
            if (one := context(round_index)) is not None:
                held.enter_context(one)
        return run(round_index)


def marked(run: Run, queue: Queue, least: int, check: Callable[[], None]) -> Launch:
    """Run between two marks, which are so many µs apart at least where compute is emulated."""
    begin, end = queue.begin, queue.end

    def launch(round_index: int) -> tuple[Mark, Mark, OnDone | None]:
        start = begin()
        on_done = run(round_index)
        return start, end(start, least, check), on_done

    return launch
