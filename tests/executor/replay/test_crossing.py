"""The exchange of a segment with other processes, as one of them sees it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from executor.devices import Now
from executor.replay.crossing import Crossing, Remote
from executor.replay.ops import Work
from executor.replay.sides import BEGUN, READY
from executor.replay.team import Facts, News
from executor.replay.tickets import Halt, Stopped, Ticket
from plans.ops import parse_id


@dataclass
class FakeTeam:
    """Says what it was told, and what went over its wire."""

    me: int = 0
    said: list[tuple[object, ...]] = field(default_factory=list)
    hear: Callable[[News], None] | None = None

    def rank(self, device: int) -> int:
        return device

    def tell(self, rank: int, segment: int, news: News) -> None:
        self.said.append((rank, segment, news.stream, news.number))

    def listen(self, segment: int, heard: Callable[[News], None]) -> None:
        self.hear = heard

    def wire(self, source: int, target: int) -> "FakeTeam":
        return self

    def send(self, source: Tensor, segment: int) -> None:
        self.said.append(("sends", source.tolist(), segment))

    def receive(self, target: Tensor, segment: int) -> Callable[[], object]:
        self.said.append(("asks", segment))
        return lambda: target.fill_(7)


def fact(buffer: str) -> Facts:
    return Facts(parse_id("a.s0.U0"), buffer)


def remote(heeded: list[str], halt: Halt | None = None) -> Remote:
    return Remote("0.compute", halt or Halt(), 8, lambda known: heeded.append(known.buffer))


def test_facts_are_heeded_by_who_waits_for_them() -> None:
    """In their order, and not before: until then an earlier op may need what was."""
    heeded: list[str] = []
    stream = remote(heeded)
    for number, name in ((1, "one"), (2, "two"), (4, "four")):
        stream.hear(News("0.compute", number, 0.0, None, (fact(name),)))
    assert heeded == []
    stream.wait(3)
    assert heeded == ["one", "two"]
    stream.wait(4)
    assert heeded == ["one", "two", "four"]


def test_news_of_a_later_op_are_those_of_all_before_it() -> None:
    """Who waits for an earlier one goes on, with the time of the later one at the latest."""
    stream = remote([])
    stream.hear(News("0.compute", 3, 1.5))
    mark = stream.wait(3)
    assert mark is not None
    assert mark.seconds() == 1.5
    stream.wait(1)


def test_who_waits_for_another_process_is_woken_when_the_segment_stops() -> None:
    """Nothing will ever come."""
    halt = Halt()
    stream = remote([], halt)
    halt.watch([stream])
    timer = threading.Timer(0.05, halt.stop)
    timer.start()
    with pytest.raises(Stopped):
        stream.wait(1)
    timer.join()


def crossing(team: FakeTeam, halt: Halt | None = None) -> Crossing:
    return Crossing(5, team, {"a.s0.param"}, halt or Halt())


def test_an_end_is_told_to_those_who_wait_for_it() -> None:
    """With the number of the op in its stream, which grows from round to round."""
    team, stream = FakeTeam(), remote([])
    own = Ticket(stream, 3, 10, "a.s0.F0")
    launch = crossing(team).told(
        lambda _: (Now(0.0), Now(0.0), None), "0.compute", own, frozenset({2}), None
    )
    for number in (0, 1):
        _, end, on_done = launch(number)
        assert team.said[number:] == []
        assert on_done is not None
        on_done(end)
    assert team.said == [(2, 5, "0.compute", 3), (2, 5, "0.compute", 13)]


def test_what_nobody_waits_for_is_launched_as_it_is() -> None:
    """Nothing is put around it."""

    def launch(_: int) -> Any:
        raise NotImplementedError

    own = Ticket(remote([]), 1, 1, "a.s0.F0")
    assert crossing(FakeTeam()).told(launch, "0.compute", own, frozenset(), None) is launch


def work(**buffers: Tensor) -> Work:
    """An X of gradients on a device that gives and gets at once."""
    device = SimpleNamespace(give=lambda source, put: put(2.5), get=lambda taken, end: taken())
    op = SimpleNamespace(writes={}, stream="0.p2p>1")
    made = SimpleNamespace(op=op, name=parse_id("a.s0.X0"), task=None, evaluates=False)
    made.place = SimpleNamespace(device=device)
    made.reads = made.writes = {"grad": next(iter(buffers.values()))}
    return cast("Work", made)


def test_a_sender_says_that_it_begins_sends_and_waits_until_that_is_over() -> None:
    """It goes on when the receiver has said so."""
    team, halt = FakeTeam(), Halt()
    lane = Remote("0.p2p>1", halt, 8, lambda _: None)
    ready = Ticket(lane, 1, 2, "a.s0.X0" + READY)
    send = crossing(team, halt).sender(
        work(source=torch.tensor([3], dtype=torch.uint8)), "0.p2p>1", [ready], (0, 1)
    )
    lane.hear(News("0.p2p>1", 3, 0.0))  # the X of round 0, and that of round 1 is awaited
    player = threading.Thread(target=send, args=(1,))
    player.start()
    player.join(0.1)
    assert player.is_alive()
    assert team.said == [(1, 5, "0.p2p>1" + BEGUN, 2), ("sends", [3], 5)]
    lane.hear(News("0.p2p>1", 4, 0.0))
    player.join(5)
    assert not player.is_alive()


def test_a_receiver_asks_for_bytes_and_takes_them_when_they_are_sent() -> None:
    """Into the buffer that the X writes, which is free when it asks."""
    target = torch.zeros(2, dtype=torch.uint8)
    team, into = FakeTeam(), work(target=target)
    one = crossing(team)
    receive = one.receiver(into, remote([]))
    one.asker(into, "0.p2p>1", (0, 1))(0)
    assert team.said == [("asks", 5)]
    assert target.tolist() == [0, 0]
    receive(0)
    assert target.tolist() == [7, 7]


def test_a_stream_tells_where_a_phase_ends() -> None:
    """By its number then."""
    team = FakeTeam()
    crossing(team).ended("0.compute", 12, (1, 2))
    assert team.said == [(1, 5, "0.compute", 12), (2, 5, "0.compute", 12)]


def test_news_come_to_the_stream_that_they_are_of() -> None:
    """From the moment on when there are streams."""
    team, stream = FakeTeam(), remote([])
    crossing(team).begin({"0.compute": stream})
    assert team.hear
    team.hear(News("0.compute", 1, 0.5))
    assert stream.wait(1) is not None
