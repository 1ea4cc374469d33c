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
from executor.replay.crossing import Crossing, RemoteGate
from executor.replay.gates import Gates, Halt, Stopped
from executor.replay.ops import Work
from executor.replay.sides import BEGUN, OVER
from executor.replay.team import Facts, News
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
        self.said.append((rank, segment, news.op, news.round))

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


HALT = Halt()


def remote(heeded: list[str]) -> RemoteGate:
    return RemoteGate(lambda known: heeded.append(known.buffer))


def news(number: int, at: float = 0.0, *facts: Facts) -> News:
    return News("round", "a.s0.X0", number, at, None, facts)


def test_facts_are_heeded_by_who_waits_for_them() -> None:
    """In their order, and not before: until then an earlier op may need what was."""
    heeded: list[str] = []
    gate = remote(heeded)
    for number, name in enumerate(("one", "two", "three")):
        gate.hear(news(number, 0.0, fact(name)))
    assert heeded == []
    gate.reached(1, HALT)
    assert heeded == ["one", "two"]
    gate.reached(2, HALT)
    assert heeded == ["one", "two", "three"]


def test_news_of_a_later_round_are_those_of_all_before_it() -> None:
    """Who waits for an earlier one goes on."""
    gate = remote([])
    gate.hear(news(3, 1.5))
    assert gate.reached(3, HALT).seconds() == 1.5


def test_who_waits_for_another_process_is_woken_when_the_segment_stops() -> None:
    """Nothing will ever come."""
    halt, gate = Halt(), remote([])
    halt.watch(gate.wake)
    timer = threading.Timer(0.05, halt.stop)
    timer.start()
    with pytest.raises(Stopped):
        gate.reached(0, halt)
    timer.join()


def crossing(team: FakeTeam, gates: Gates | None = None) -> Crossing:
    made = Gates(lambda: remote([])) if gates is None else gates
    return Crossing(5, team, {"a.s0.param"}, HALT, made)


def test_an_end_is_told_to_those_who_wait_for_it() -> None:
    """With the op and its round, when its mark is reached."""
    team = FakeTeam()
    run = crossing(team).told(lambda _: None, ("round", "a.s0.F0"), frozenset({2}), None)
    for number in (0, 1):
        on_done = run(number)
        assert team.said[number:] == []
        assert on_done is not None
        on_done(Now(0.0))
    assert team.said == [(2, 5, "a.s0.F0", 0), (2, 5, "a.s0.F0", 1)]


def test_what_nobody_waits_for_is_run_as_it_is() -> None:
    """Nothing is put around it."""

    def run(_: int) -> Any:
        raise NotImplementedError

    assert crossing(FakeTeam()).told(run, ("round", "a.s0.F0"), frozenset(), None) is run


def work(**buffers: Tensor) -> Work:
    """An X of gradients on a device that gives and gets at once."""
    device = SimpleNamespace(give=lambda source, put: put(2.5), get=lambda taken, end: taken())
    op = SimpleNamespace(id=NAME, writes={}, stream="0.p2p>1")
    made = SimpleNamespace(op=op, name=parse_id("a.s0.X0"), task=None, evaluates=False)
    made.place = SimpleNamespace(device=device)
    made.reads = made.writes = {"grad": next(iter(buffers.values()))}
    return cast("Work", made)


NAME = "a.s0.X0"


def test_a_sender_says_that_it_begins_sends_and_waits_until_that_is_over() -> None:
    """It goes on when the receiver has said so."""
    team, gates = FakeTeam(), Gates(lambda: remote([]))
    send = crossing(team, gates).sender(
        "round", work(source=torch.tensor([3], dtype=torch.uint8)), (0, 1)
    )
    over = gates["round", NAME + OVER]
    assert isinstance(over, RemoteGate)
    over.hear(news(0))
    player = threading.Thread(target=send, args=(1,))
    player.start()
    player.join(0.1)
    assert player.is_alive()
    assert team.said == [(1, 5, NAME + BEGUN, 1), ("sends", [3], 5)]
    over.hear(news(1))
    player.join(5)
    assert not player.is_alive()


def test_a_receiver_asks_for_bytes_and_takes_them_when_they_are_sent() -> None:
    """Into the buffer that the X writes, which is free when it asks."""
    target = torch.zeros(2, dtype=torch.uint8)
    team, into = FakeTeam(), work(target=target)
    one = crossing(team)
    receive = one.receiver("round", into, (0, 1))
    one.asker("round", into, (0, 1))(0)
    assert team.said == [("asks", 5)]
    assert target.tolist() == [0, 0]
    receive(0)
    assert target.tolist() == [7, 7]


def test_news_come_to_the_gate_that_they_are_of() -> None:
    """From the moment on when there are gates."""
    team, gates = FakeTeam(), Gates(lambda: remote([]))
    crossing(team, gates).begin()
    assert team.hear
    team.hear(news(0, 0.5))
    assert gates["round", NAME].reached(0, HALT).seconds() == 0.5
