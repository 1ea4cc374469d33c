"""Signals between processes: counters and facts in shared memory, and messages."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from support import handmade
from support.chains import tasks_for
from support.fit import fit

from executor.distributed import signals
from executor.distributed.signals import Board, Counter, Letter, board_bytes
from executor.distributed.stores import SharedMemory
from executor.errors import RunError
from executor.replay import Facts, Stopped
from plans.ops import parse_id
from plans.part import Part


def boards() -> tuple[Board, Board]:
    """The same shared memory as two processes have it."""
    made = handmade.pipeline()
    part = Part(fit(made, tasks_for(made)), (0, 1))
    memory = SharedMemory(board_bytes(part))
    return Board(part, memory), Board(part, SharedMemory(board_bytes(part), memory.path))


def fact(*absent: int) -> Facts:
    return Facts(parse_id("a.s0.U0"), "a.s0.grad", absent=frozenset(absent))


def free() -> None:
    """Nothing has ended."""


def later(call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.05, call)
    timer.start()
    return timer


@pytest.mark.parametrize("futex", [True, False])
def test_who_waits_goes_on_when_a_round_is_told(
    futex: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the time of that very round, though later ones are over, too; with and without help of
    the system."""
    if not futex:
        monkeypatch.setattr(signals, "_FUTEX", None)
    one, other = boards()
    teller, waiter = Counter(one, 5, None), Counter(other, 5, None)
    timer = later(lambda: teller.tell(0, 1.5))
    begun = time.perf_counter()
    assert waiter.told(0, free) == (1.5, None)
    assert 0.03 < time.perf_counter() - begun < 5
    timer.join()
    for number in (1, 2):
        teller.tell(number, number + 1.5)
    assert [waiter.told(number, free)[0] for number in (1, 2)] == [2.5, 3.5]
    assert Counter(other, 6, None)._board._words[6 * signals._WORDS] == 0


def test_a_wait_ends_with_its_segment() -> None:
    """Nothing will ever come."""
    one, _ = boards()
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise Stopped

    timer = later(ended.set)
    with pytest.raises(Stopped):
        Counter(one, 0, None).told(0, check)
    timer.join()


def test_facts_come_with_what_a_device_sends() -> None:
    """They are written again where they differ, and known where they do not, whatever another
    signal of the device has told meanwhile."""
    one, other = boards()
    tellers = [Counter(one, place, one.room(1)) for place in (3, 4)]
    waiters = [Counter(other, place, other.room(1)) for place in (3, 4)]
    told = [(0, fact(1)), (1, fact(2)), (0, fact(1)), (1, None), (0, fact(3)), (1, None)]
    numbers = [0, 0]
    for which, facts in told:
        tellers[which].tell(numbers[which], 1.0, facts)
        assert waiters[which].told(numbers[which], free) == (1.0, facts)
        numbers[which] += 1


def test_facts_lie_beside_a_host_buffer() -> None:
    """Whoever has written them last, all read them."""
    one, other = boards()
    name = next(iter(one._numbers))
    tags = [one.tag(name), other.tag(name)]
    assert [tag.read() for tag in tags] == [None, None]
    for which, facts in ((0, fact(1)), (1, fact(2)), (0, fact(1)), (0, fact(1)), (1, None)):
        tags[which].write(facts)
        assert [tag.read() for tag in tags] == [facts, facts]


def test_facts_that_have_no_room_are_refused() -> None:
    """With their size, before anything is written over."""
    one, _ = boards()
    many = Facts(parse_id("a.s0.U0"), "b", absent=frozenset(range(10**6)))
    with pytest.raises(RunError, match=r"what is known of b takes \d+ bytes"):
        Counter(one, 0, one.room(0)).tell(0, 1.0, many)


class Mail:
    """Two ends of torch.distributed in one process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: list[torch.Tensor] = []
        for name in ("send", "isend"):
            monkeypatch.setattr(signals.dist, name, self._send)
        monkeypatch.setattr(signals.dist, "recv", self._receive)

    def _send(self, flat: torch.Tensor, *_: Any, **__: Any) -> None:
        self.left.append(flat.clone())

    def _receive(self, flat: torch.Tensor, *_: Any, **__: Any) -> None:
        flat.copy_(self.left.pop(0))


def test_between_nodes_facts_go_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time is told as what is left until then, by the clock of whoever hears it."""
    mail, group = Mail(monkeypatch), Any
    teller, waiter = Letter(group, 1, 7), Letter(group, 0, 7)  # type: ignore[arg-type]
    teller.tell(0, 0.0, fact(1))
    assert len(mail.left) == 2
    assert waiter.told(0, free) == (0.0, fact(1))
    teller.tell(1, time.perf_counter() + 100, fact(1))
    assert len(mail.left) == 1
    at, facts = waiter.told(1, free)
    assert facts == fact(1)
    assert 99 < at - time.perf_counter() <= 100


def test_between_nodes_the_end_of_a_segment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is woken by it."""
    Mail(monkeypatch)
    teller, waiter = Letter(Any, 1, 7), Letter(Any, 0, 7)  # type: ignore[arg-type]
    teller.cancel()
    with pytest.raises(Stopped):
        waiter.told(0, free)
