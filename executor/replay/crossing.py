"""The exchange of a segment's streams with other processes: news of ops that have ended, X, and the
facts that go with both."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial

from torch import Tensor

from executor.devices import Mark, Now, until
from executor.replay.ops import NOTHING, Run, Work
from executor.replay.sides import BEGUN, READY
from executor.replay.task_state import TaskState
from executor.replay.team import Facts, News, Team
from executor.replay.tickets import Halt, Launch, OnDone, Stream, Ticket

Heed = Callable[[Facts], None]


class Remote(Stream):
    """A stream of another process: how many of its ops have ended, as far as news have come. Who
    waits for them heeds their facts. `end`: of the latest X that has begun."""

    def __init__(self, name: str, halt: Halt, keep: int, heed: Heed) -> None:
        super().__init__(name, halt, None, keep)
        self.end: float | None = None
        self._heed = heed
        self._news = deque[News]()
        self._reading = threading.Lock()

    def hear(self, news: News) -> None:
        """Take news in, from any thread."""
        self._news.append(news)
        self.advance(news.number, Now(news.at))

    def wait(self, count: int) -> Mark | None:
        mark = super().wait(count)
        with self._reading:
            while self._news and self._news[0].number <= count:
                news = self._news.popleft()
                self.end = news.end
                for fact in news.facts:
                    self._heed(fact)
        return mark


class Crossing:
    """The exchange of segment `index` with other processes. `hosted`: names of buffers in host
    memory, which they read as well: facts of what is written there go with the news of it."""

    def __init__(self, index: int, team: Team, hosted: Set[str], halt: Halt) -> None:
        self._index, self._team, self._halt = index, team, halt
        self._hosted = hosted
        # By lane, what completes the receiving that its process has asked for.
        self._asked: dict[str, deque[Callable[[], object]]] = defaultdict(deque)

    @property
    def me(self) -> int:
        """This process."""
        return self._team.me

    def begin(self, streams: Mapping[str, Stream]) -> None:
        """Let the news come to the streams that they are of."""

        def hear(news: News) -> None:
            stream = streams[news.stream]
            assert isinstance(stream, Remote), "its process runs it"
            stream.hear(news)

        self._team.listen(self._index, hear)

    def ended(self, stream: str, count: int, ranks: Collection[int]) -> None:
        """A stream has come to the end of a phase: these processes wait for that."""
        self._tell(ranks, News(stream, count, time.perf_counter()))

    def told(
        self, launch: Launch, stream: str, own: Ticket, tells: Collection[int], work: Work | None
    ) -> Launch:
        """The launch of an op whose end these processes are told."""
        if not tells:
            return launch
        hosted = work if work and self._hosted & set(work.op.writes.values()) else None

        def tell(on_done: OnDone | None, round_index: int, end: Mark) -> None:
            if on_done:
                on_done(end)
            facts = facts_of(hosted) if hosted else None
            until(end, self._halt.check)
            count = own.base + own.stride * round_index
            self._tell(tells, News(stream, count, end.seconds(), None, _all(facts)))

        def launched(round_index: int) -> tuple[Mark, Mark, OnDone]:
            start, end, on_done = launch(round_index)
            return start, end, partial(tell, on_done, round_index)

        return launched

    def sender(self, work: Work, lane: str, waits: Sequence[Ticket], ends: tuple[int, int]) -> Run:
        """The sending side of an X from one of the plan's devices to another."""
        wire, rank = self._team.wire(*ends), self._team.rank(ends[1])
        ready = next(ticket for ticket in waits if ticket.op.endswith(READY))
        ((_, source),) = work.reads.items()

        def send(round_index: int) -> None:
            number = ready.base + ready.stride * round_index
            facts = facts_of(work)

            def put(end: float | None) -> None:
                begun = (number + 1) // 2  # in a lane every other op is an X
                self._tell([rank], News(lane + BEGUN, begun, time.perf_counter(), end, _all(facts)))
                wire.send(source, self._index)
                ready.stream.wait(number + 1)  # who knows that it is over here relies on it there

            work.place.device.give(source, put)

        return send

    def asker(self, work: Work, lane: str, ends: tuple[int, int]) -> Run:
        """Makes the op by which the receiving side of an X says that its buffer is free."""
        wire, asked = self._team.wire(*ends), self._asked[lane]
        ((_, target),) = work.writes.items()
        return lambda _: asked.append(wire.receive(target, self._index))

    def receiver(self, work: Work, begun: Stream) -> Run:
        """The receiving side; `begun` is the stream of what its sender has begun."""
        asked = self._asked[work.op.stream]
        assert isinstance(begun, Remote), "the sender runs it"

        def receive(round_index: int) -> None:
            work.place.device.get(asked.popleft(), begun.end)

        return receive

    def _tell(self, ranks: Collection[int], news: News) -> None:
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
