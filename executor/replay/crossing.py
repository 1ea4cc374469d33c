"""The exchange of a segment's ops with other processes: news of ops that have ended, X, and the
facts that go with both."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Set
from functools import partial

from torch import Tensor

from executor.devices import Mark, Now, until
from executor.replay.gates import Gate, Gates, Halt
from executor.replay.ops import NOTHING, OnDone, Run, Work
from executor.replay.sides import BEGUN, OVER
from executor.replay.task_state import TaskState
from executor.replay.team import Facts, News, Team

Heed = Callable[[Facts], None]
Key = tuple[str, str]  # phase and op


class RemoteGate(Gate):
    """The gate of an op of another process: the rounds of it that have ended, as far as news have
    come. Who waits for one heeds its facts. `end`: of the latest X that has begun."""

    def __init__(self, heed: Heed) -> None:
        super().__init__()
        self.end: float | None = None
        self._heed = heed
        self._news = deque[News]()

    def hear(self, news: News) -> None:
        """Take news in, from any thread."""
        self._news.append(news)
        self.open(news.round, Now(news.at))

    def reached(self, number: int, halt: Halt) -> Mark:
        mark = super().reached(number, halt)
        with self._changed:
            while self._news and self._news[0].round <= number:
                news = self._news.popleft()
                self.end = news.end
                for fact in news.facts:
                    self._heed(fact)
        return mark


class Crossing:
    """The exchange of segment `index` with other processes. `hosted`: names of buffers in host
    memory, which they read as well: facts of what is written there go with the news of it."""

    def __init__(self, index: int, team: Team, hosted: Set[str], halt: Halt, gates: Gates) -> None:
        self._index, self._team, self._halt = index, team, halt
        self._hosted, self._gates = hosted, gates
        # By lane, what completes the receiving that its process has asked for.
        self._asked: dict[str, deque[Callable[[], object]]] = defaultdict(deque)

    @property
    def me(self) -> int:
        """This process."""
        return self._team.me

    def begin(self) -> None:
        """Let the news come to the gates that they are of."""

        def hear(news: News) -> None:
            gate = self._gates[news.phase, news.op]
            assert isinstance(gate, RemoteGate), "its process runs it"
            gate.hear(news)

        self._team.listen(self._index, hear)

    def told(self, run: Run, key: Key, ranks: Collection[int], work: Work | None) -> Run:
        """The run of an op whose end these processes are told."""
        if not ranks:
            return run
        phase, op = key
        hosted = work if work and self._hosted & set(work.op.writes.values()) else None
        name = op + OVER if work and ">" in work.op.stream else op

        def tell(on_done: OnDone | None, number: int, end: Mark) -> None:
            if on_done:
                on_done(end)
            facts = facts_of(hosted) if hosted else None
            until(end, self._halt.check)
            self.tell(ranks, News(phase, name, number, end.seconds(), None, _all(facts)))

        return lambda number: partial(tell, run(number), number)

    def sender(self, phase: str, work: Work, ends: tuple[int, int]) -> Run:
        """The sending side of an X from one of the plan's devices to another."""
        wire, rank = self._team.wire(*ends), self._team.rank(ends[1])
        op, ((_, source),) = work.op.id, work.reads.items()
        over = self._gates[phase, op + OVER]

        def send(number: int) -> None:
            facts = facts_of(work)

            def put(end: float | None) -> None:
                begun = News(phase, op + BEGUN, number, time.perf_counter(), end, _all(facts))
                self.tell([rank], begun)
                wire.send(source, self._index)
                over.reached(number, self._halt)  # who knows that it is over here relies on that

            work.place.device.give(source, put)

        return send

    def asker(self, phase: str, work: Work, ends: tuple[int, int]) -> Run:
        """Makes the op by which the receiving side of an X says that its buffer is free."""
        wire, asked = self._team.wire(*ends), self._asked[work.op.stream]
        ((_, target),) = work.writes.items()
        return lambda _: asked.append(wire.receive(target, self._index))

    def receiver(self, phase: str, work: Work, ends: tuple[int, int]) -> Run:
        """The receiving side, once the sender has begun."""
        asked, begun = self._asked[work.op.stream], self._gates[phase, work.op.id + BEGUN]
        assert isinstance(begun, RemoteGate), "the sender runs it"
        return lambda _: work.place.device.get(asked.popleft(), begun.end)

    def tell(self, ranks: Collection[int], news: News) -> None:
        for rank in ranks:
            self._team.tell(rank, self._index, news)


def facts_of(work: Work) -> Facts | None:
    """The facts about the buffer that an op has written, if others need some."""
    name, task = work.name, work.task
    if len(work.op.writes) != 1:
        return None
    ((role, buffer),) = work.op.writes.items()
    about = partial(Facts, name, buffer, work.evaluates)
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


def _all(facts: Facts | None) -> tuple[Facts, ...]:
    return (facts,) if facts else ()
