"""Signals between processes: counters and facts in shared memory, and messages."""

import threading
import time
from collections.abc import Callable

import pytest
from support import handmade
from support.chains import tasks_for
from support.fit import fit

from executor.distributed import signals
from executor.distributed.signals import Board, Counter, board_bytes
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


def test_facts_that_have_no_room_are_refused() -> None:
    """With their size, before anything is written over."""
    one, _ = boards()
    many = Facts(parse_id("a.s0.U0"), "b", absent=frozenset(range(10**6)))
    with pytest.raises(RunError, match=r"what is known of b takes \d+ bytes"):
        Counter(one, 0, one.room(0)).tell(0, 1.0, many)
