"""The exchange of a segment's ops with other processes: gates that others open or wait at, X, and
the facts that go with both."""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

from torch import Tensor

from executor.devices import Mark, Now, until
from executor.replay.gates import Gate, Gates, Halt
from executor.replay.ops import NOTHING, OnDone, Run, Work
from executor.replay.sides import BEGUN, OVER, Sides, process
from executor.replay.task_state import TaskState
from executor.replay.team import Facts, Key, Signal, Tag, Team
from plans.schema import Role

Heed = Callable[[Facts], None]


class ToldGate(Gate):
    """The gate of an op that other processes wait for: they are told when it has ended."""

    def __init__(self, signal: Signal, halt: Halt) -> None:
        super().__init__()
        self._signal, self._halt = signal, halt

    def open(self, number: int, mark: Mark) -> None:
        until(mark, self._halt.check)
        self._signal.tell(number, mark.seconds())
        super().open(number, mark)

    def wake(self) -> None:
        if self._halt.stopped:
            self._signal.cancel()
        super().wake()


class RemoteGate(Gate):
    """The gate of an op of another process."""

    def __init__(self, signal: Signal) -> None:
        super().__init__()
        self._signal = signal

    def reached(self, number: int, halt: Halt) -> Mark:
        return Now(self._signal.told(number, halt.check)[0])


class BegunGate(RemoteGate):
    """An X has begun in another process. end: when a paced link has moved it; facts: those that
    come with it."""

    end: float | None = None
    facts: Facts | None = None

    def reached(self, number: int, halt: Halt) -> Mark:
        end, self.facts = self._signal.told(number, halt.check)
        self.end = end or None
        return Now()


class Crossing:
    """The exchange of segment `index` with other processes; `heed` takes in the facts that they
    tell."""

    def __init__(self, index: int, team: Team, sides: Sides, halt: Halt, heed: Heed) -> None:
        self._index, self._team, self._halt, self._heed = index, team, halt, heed
        self._sides = sides
        self.gates = Gates(self._gate)
        self._place = 0  # the number of phases that have ended
        self._own = {(phase, op.id) for phase, ops in sides.phases.items() for op in ops}
        # By lane, what completes the receiving that its process has asked for.
        self._asked: dict[str, deque[Callable[[], object]]] = defaultdict(deque)

    def _gate(self, key: Key) -> Gate:
        """The gate of an op of this process, or of another one."""
        if key not in self._own:
            return RemoteGate(self._signal(key, self._sides.tellers[key]))
        tells = self._sides.tells.get(key)
        return ToldGate(self._signal(key, min(tells)), self._halt) if tells else Gate()

    def _signal(self, key: Key, other: int, room: int | None = None) -> Signal:
        return self._team.signal(self._index, self._sides.numbers[key], other, room)

    def meet(self, at: float) -> list[Mark]:
        """Come to the end of a phase at this time; when the other processes of the node have."""
        sides, check = self._sides, self._halt.check
        near = [rank for rank in sides.busy if sides.nodes[rank] == sides.nodes[sides.me]]
        own, *others = (
            self._signal(("", process(rank)), rank)
            for rank in sorted(near, key=lambda rank: rank != sides.me)
        )
        own.tell(self._place, at)
        met: list[Mark] = [Now(other.told(self._place, check)[0]) for other in others]
        self._place += 1
        return met

    def known(self, work: Work, run: Run) -> Run:
        """The run of an op with what it has to know of host buffers that others write, and tells of
        those that others read."""
        used = {*work.op.reads.values(), *work.op.writes.values()} & self._sides.shared
        tags = {name: self._team.tag(name) for name in used}
        writes: dict[Role, Tag] = {role: tags[b] for role, b in work.op.writes.items() if b in tags}
        if not tags:
            return run

        def knowing(number: int) -> OnDone | None:
            for tag in tags.values():
                if facts := tag.read():
                    self._heed(facts)
            on_done = run(number)
            for role, tag in writes.items():
                tag.write(facts_of(work, role))
            return on_done

        return knowing

    def sender(self, phase: str, work: Work, ends: tuple[int, int], other: int) -> Run:
        """The sending side of an X from one of the plan's devices to another."""
        wire, op = self._team.wire(*ends), work.op.id
        ((role, _),), (source,) = work.op.writes.items(), work.reads.values()
        begun = self._signal((phase, op + BEGUN), other, ends[0])
        over = self._signal((phase, op + OVER), other)
        queue, check = work.place.device.queue("p2p"), self._halt.check
        self._halt.watch(begun.cancel)

        def send(number: int) -> None:
            facts = facts_of(work, role)
            until(queue.mark(), check)  # a device that asks for the bytes waits for nothing else

            def put(end: float | None) -> None:
                if wire.early:
                    begun.tell(number, end or 0.0, facts)
                wire.send(source, self._index)
                if not wire.early:  # launched, so that nobody asks for what no launch can bring
                    begun.tell(number, end or 0.0, facts)
                over.told(number, check)  # who knows that it is over here relies on that

            work.place.device.give(source, put)

        return send

    def asker(self, work: Work, ends: tuple[int, int]) -> Run:
        """Makes the op by which the receiving side of an X says that its buffer is free."""
        wire, asked = self._team.wire(*ends), self._asked[work.op.stream]
        ((_, target),) = work.writes.items()
        return lambda _: asked.append(wire.receive(target, self._index))

    def receiver(self, phase: str, work: Work, ends: tuple[int, int], other: int) -> Run:
        """The receiving side, once the sender has begun."""
        asked, op, check = self._asked[work.op.stream], work.op.id, self._halt.check
        begun = BegunGate(self._signal((phase, op + BEGUN), other, ends[0]))
        over = self._signal((phase, op + OVER), other)
        self.gates[phase, op + BEGUN] = begun
        self._halt.watch(over.cancel)

        def tell(number: int, end: Mark) -> None:
            until(end, check)
            over.tell(number, end.seconds())

        def receive(number: int) -> OnDone:
            work.place.device.get(asked.popleft(), begun.end)
            if begun.facts:
                self._heed(begun.facts)
            return partial(tell, number)

        return receive


def facts_of(work: Work, role: Role) -> Facts | None:
    """The facts about the buffer that an op has written in a role, if others need some."""
    name, task = work.name, work.task
    about = partial(Facts, name, work.op.writes[role], work.evaluates)
    if role == "norm" or (role == "param" and task.scale):
        return about(norming=task.norming())
    if role in ("grad", "other", "tie"):
        return about(absent=task.absent.of(work.reads.get(role, work.writes.get(role, NOTHING))))
    if name.kind != "X":
        return None
    if name.item in ("batch", "x"):
        return about(content=work.feed.contents.of(work.source(role)))
    if name.item == "dx":
        return about(grads=task.gradients.pop((name.number, name.index)))
    return None


def heed(facts: Facts, task: TaskState, find: Callable[[str], Tensor]) -> None:
    """Let `task` go on with what another process wrote; `find` gives a buffer by name."""
    name, feed = facts.op, task.feed(evaluates=facts.evaluates)
    if facts.absent is not None:
        task.absent.note(find(facts.buffer), facts.absent)
    if facts.norming:
        task.go_on(facts.norming)
    if facts.grads is not None:
        task.gradients[name.number, name.index] = facts.grads
    if facts.content is None:
        return
    if name.item == "x":
        feed.boundary(name.number, find(facts.buffer), facts.content.layouts[0])
    else:
        feed.contents.note(find(facts.buffer), facts.content)
