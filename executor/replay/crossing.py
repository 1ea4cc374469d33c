"""The exchange of a segment's streams with other processes: news of ops that have ended, and X."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial

from executor.devices import Mark, Now, until
from executor.replay.ops import Run, Work
from executor.replay.sides import BEGUN, READY
from executor.replay.team import Facts, News, Team, facts_of
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
    """The exchange of segment `index` with the processes `others`. `hosted`: names of buffers in
    host memory, which they read as well."""

    def __init__(
        self, index: int, team: Team, others: Collection[int], hosted: Set[str], halt: Halt
    ) -> None:
        self._index, self._team, self._others, self._halt = index, team, others, halt
        self._hosted = hosted
        self._untold: dict[int, list[Facts]] = {rank: [] for rank in others}
        self._telling = threading.Lock()
        # By lane, what completes the receiving that its process has asked for.
        self._asked: dict[str, deque[Callable[[], object]]] = defaultdict(deque)

    def begin(self, streams: Mapping[str, Stream]) -> None:
        """Let the news come to the streams that they are of."""

        def hear(news: News) -> None:
            stream = streams[news.stream]
            assert isinstance(stream, Remote), "its process runs it"
            stream.hear(news)

        self._team.listen(self._index, hear)

    def ended(self, stream: str, count: int) -> None:
        """A stream has come to the end of a phase."""
        self._tell(self._others, stream, count, time.perf_counter())

    def told(
        self, launch: Launch, stream: str, own: Ticket, tells: Collection[int], work: Work | None
    ) -> Launch:
        """The launch of an op whose end these processes are told, and what it left in the host's
        memory with the next news."""
        hosted = work if work and self._hosted & set(work.op.writes.values()) else None
        if not tells and not hosted:
            return launch

        def tell(on_done: OnDone | None, round_index: int, end: Mark) -> None:
            if on_done:
                on_done(end)
            if hosted and (facts := facts_of(hosted)):
                with self._telling:
                    for untold in self._untold.values():
                        untold.append(facts)
            if tells:
                until(end, self._halt.check)
                self._tell(tells, stream, own.base + own.stride * round_index, end.seconds())

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
            # In a lane every other op is an X.
            count = (ready.base + ready.stride * round_index + 1) // 2
            facts = facts_of(work)

            def put(end: float | None) -> None:
                news = News(
                    lane + BEGUN, count, time.perf_counter(), end, (facts,) if facts else ()
                )
                self._team.tell(rank, self._index, news)
                wire.send(source, self._index)

            work.place.device.give(source, put)

        return send

    def asker(self, work: Work, lane: str, ends: tuple[int, int]) -> Run:
        """Of the receiving side of an X: its buffer is free."""
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

    def _tell(self, ranks: Collection[int], stream: str, count: int, at: float) -> None:
        with self._telling:
            for rank in ranks:
                facts, self._untold[rank] = tuple(self._untold[rank]), []
                self._team.tell(rank, self._index, News(stream, count, at, None, facts))
