"""The part that the lead and the others have in common: news of segments, and wires."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from torch import Tensor

from executor.distributed.links import Clock, GroupWire, Mesh, Pair
from executor.distributed.messages import Heard
from executor.distributed.values import pack_facts, unpack_facts
from executor.errors import RunError
from executor.replay import News, Stopped, Wire
from plans.part import Part

T = TypeVar("T")

_NEWS_S = 1.0  # until a process that is gone is known to be


@dataclass(frozen=True)
class _Guarded:
    """A wire that stops where it fails because a process is gone: that ends the run."""

    wire: GroupWire
    mesh: Mesh

    def send(self, source: Tensor, segment: int) -> None:
        self._guard(partial(self.wire.send, source, segment))

    def receive(self, target: Tensor, segment: int) -> Callable[[], object]:
        return partial(self._guard, self._guard(partial(self.wire.receive, target, segment)))

    def _guard(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except RunError:
            if self.mesh.loss(_NEWS_S):
                raise Stopped from None
            raise


class Peers:
    """The processes of a run, for the one that has this part of the plan."""

    def __init__(
        self, part: Part, mesh: Mesh, wires: Mapping[Pair, GroupWire], clock: Clock
    ) -> None:
        self.me = part.me
        self.clock = clock
        self.mesh = mesh
        self._ranks, self._wires = part.ranks, wires
        self._hear: dict[int, Callable[[News], None]] = {}
        self._early: dict[int, list[News]] = {}
        self._lock = threading.Lock()

    def rank(self, device: int) -> int:
        """The process that has a device of the plan."""
        return self._ranks[device]

    def tell(self, rank: int, segment: int, news: News) -> None:
        """Send news of a segment to a process."""
        facts = [pack_facts(fact) for fact in news.facts]
        ahead = self.clock.ahead
        end = None if news.end is None else news.end + ahead
        op = news.phase, news.op, news.round
        self.mesh.send(rank, Heard(segment, *op, news.at + ahead, end, facts))

    def listen(self, segment: int, heard: Callable[[News], None]) -> None:
        """Hand on the news of a segment, those first that came before."""
        with self._lock:
            for news in self._early.pop(segment, ()):
                heard(news)
            self._hear[segment] = heard

    def wire(self, source: int, target: int) -> Wire:
        """The wire from one device to another."""
        return _Guarded(self._wires[source, target], self.mesh)

    def heard(self, message: Heard) -> None:
        """Take news in."""
        facts = tuple(unpack_facts(fact) for fact in message.facts)
        ahead = self.clock.ahead
        end = None if message.end is None else message.end - ahead
        op = message.phase, message.op, message.round
        news = News(*op, message.at - ahead, end, facts)
        with self._lock:
            if hear := self._hear.get(message.segment):
                hear(news)
            else:
                self._early.setdefault(message.segment, []).append(news)

    def forget(self, segment: int) -> None:
        """The segment has ended."""
        with self._lock:
            self._hear.pop(segment, None)
            self._early.pop(segment, None)
