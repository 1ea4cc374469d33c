"""The part that the lead and the others have in common: news of segments, and wires."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from executor.distributed.mesh import Mesh
from executor.distributed.messages import Heard
from executor.distributed.values import pack_facts, unpack_facts
from executor.distributed.wires import GroupWire, Pair
from executor.errors import RunError
from executor.replay import News, Wire

_NEWS_S = 1.0  # until a process that is gone is known to be


@dataclass(frozen=True)
class _Told:
    """A wire that says who is gone, where that is why it fails."""

    wire: GroupWire
    mesh: Mesh

    def send(self, source: Tensor) -> None:
        with self._telling():
            self.wire.send(source)

    def receive(self, target: Tensor) -> None:
        with self._telling():
            self.wire.receive(target)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            if text := self.mesh.loss(_NEWS_S):
                raise RunError(text) from None
            raise


class Peers:
    """The processes of a run, for one of them; `rank_of` says which has a device."""

    def __init__(
        self,
        me: int,
        mesh: Mesh,
        rank_of: Callable[[int], int],
        wires: Mapping[Pair, GroupWire],
    ) -> None:
        self.me = me
        self.mesh = mesh
        self._rank_of, self._wires = rank_of, wires
        self._hear: dict[int, Callable[[News], None]] = {}
        self._early: dict[int, list[News]] = {}
        self._lock = threading.Lock()

    def rank(self, device: int) -> int:
        """The process that has a device of the plan."""
        return self._rank_of(device)

    def tell(self, rank: int, segment: int, news: News) -> None:
        """Send news of a segment to a process."""
        facts = [pack_facts(fact) for fact in news.facts]
        heard = Heard(segment, news.stream, news.number, news.at, news.end, facts)
        self.mesh.send(rank, heard)

    def listen(self, segment: int, heard: Callable[[News], None]) -> None:
        """Hand on the news of a segment, those first that came before."""
        with self._lock:
            for news in self._early.pop(segment, ()):
                heard(news)
            self._hear[segment] = heard

    def wire(self, source: int, target: int) -> Wire:
        """The wire from one device to another."""
        return _Told(self._wires[source, target], self.mesh)

    def heard(self, message: Heard) -> None:
        """Take news in."""
        facts = tuple(unpack_facts(fact) for fact in message.facts)
        news = News(message.stream, message.count, message.at, message.end, facts)
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
