"""Processes meet by notes that nobody else can write, and wait for none of them without end."""

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

pytest.importorskip("torch")

from torch.distributed import HashStore

from executor.distributed import meeting
from executor.distributed.links import connections, dialing
from executor.distributed.links.addresses import LOOPBACK
from executor.distributed.meeting import AbsentError, Board, joined
from executor.distributed.world import World

SIZE = 3
Meeting = Callable[..., list[Board]]


@pytest.fixture
def together() -> Iterator[Meeting]:
    """So many processes that have met; `boards(limit_s, nodes)`."""
    with ExitStack() as stack, ThreadPoolExecutor(SIZE) as pool:

        def boards(limit_s: float, nodes: int = 1) -> list[Board]:
            store = HashStore()
            coming = [
                pool.submit(joined, World(rank, SIZE, nodes), store, b"shared", limit_s)
                for rank in range(SIZE)
            ]
            return [stack.enter_context(closing(one.result())) for one in coming]

        yield boards


@pytest.mark.parametrize("nodes", [1, SIZE])
def test_a_note_of_somebody_else_is_no_note(together: Meeting, nodes: int) -> None:
    """Whatever lies in its place: garbage, a verdict without a seal, another note's, none."""
    one, two, _ = together(20, nodes)
    one.say("work", "true")
    one.say("verdict", "done")
    own = one._notes
    for forged in (b"\xff\xfe", b"", b'{"code": 0}', own.get("verdict")):
        own.set("work", forged)
        assert two.read("work") is None
        assert two.read("verdict") == "done"
    one.say("work", "true")
    assert two.wait({"work": 0, "verdict": 0}) == {"work": "true", "verdict": "done"}


def test_the_secret_is_in_no_file_that_others_could_have_made(together: Meeting) -> None:
    """Nor in the store, on one machine; between machines it counts with what they share."""
    store = HashStore()
    store.set("x", __file__)
    for where in (__file__, "/etc/hostname", "/proc/self/fd/0", "", "00"):
        assert meeting._found(where, World(1, SIZE)) is None
    keys = {board.key("messages") for nodes in (1, SIZE) for board in together(20, nodes)}
    assert len(keys) == 2
    with pytest.raises(AbsentError, match=r"process 0 has not come within 0\.3 s"):
        joined(World(1, 2), store, b"another", 0.3)


def test_who_does_not_come_is_named() -> None:
    """After the limit, by process 0."""
    with ThreadPoolExecutor(1) as pool:
        store = HashStore()
        coming = pool.submit(joined, World(1, 4), store, b"", 20)
        with pytest.raises(
            AbsentError, match=r"^processes \[2, 3\] have not come within 1 s; raise --st"
        ):
            joined(World(0, 4), store, b"", 1)
        coming.result().close()


def test_who_is_stopped_is_killed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before the limit, and not who is only late."""
    stopped, late = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    stopped.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(meeting, "siblings", lambda: {1: late.pid, 2: stopped.pid})
    monkeypatch.setattr(meeting, "_HALT_S", 0.2)
    monkeypatch.setattr(meeting, "_BEAT_S", 0.1)
    with pytest.raises(AbsentError, match=r"^process 2 has been stopped for 0\.2 s before"):
        joined(World(0, 3), HashStore(), b"", 20)
    assert stopped.wait(10) == -signal.SIGKILL
    assert late.poll() is None
    late.kill()
    late.wait()


def test_who_is_silent_is_named_and_so_is_who_takes_too_long(
    together: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever prepares itself may take longer than it may be silent; the first of those who are
    not is to say so."""
    boards = together(0.4)
    with pytest.raises(AbsentError, match="process 1 has not done its part within 1 s") as late:
        boards[0].wait({"note": 1, "beat 2": 2}, 1)
    assert late.value.teller == 0
    over = threading.Event()
    monkeypatch.setattr(boards[0], "say", lambda *_: over.wait())
    with pytest.raises(AbsentError, match=r"process 0 has said nothing for 0\.4 s ") as silent:
        boards[2].wait({"note": 0}, 20)
    assert silent.value.teller == 1
    over.set()


def test_strangers_hold_no_connection_up(
    together: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither silent ones, more of them than are let in at once, nor those that send anything."""
    monkeypatch.setattr(dialing, "_GUEST_S", 0.2)
    monkeypatch.setattr(dialing, "_GUESTS", 8)
    boards = together(20)
    with ThreadPoolExecutor(SIZE) as pool, ExitStack() as strangers:
        first = pool.submit(connections, boards[0], LOOPBACK)
        place = boards[1].wait({"place 0": 0})["place 0"].partition(" ")
        for number in range(24):
            stranger = socket.create_connection((place[0], int(place[2])))
            strangers.enter_context(stranger)
            if number % 2:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * number)
        others = [pool.submit(connections, board, LOOPBACK) for board in boards[1:]]
        ends = [one.result() for one in (first, *others)]
    for me, own in enumerate(ends):
        assert own.keys() == set(range(SIZE)) - {me}
        for other, end in own.items():
            end.send_bytes(b"%d" % me)
            assert ends[other][me].recv_bytes() == b"%d" % me
    for end in (end for own in ends for end in own.values()):
        end.close()


def test_a_process_that_stops_while_it_connects_is_named(together: Meeting) -> None:
    """Its port takes connections, and says nothing."""
    boards = together(1)
    with socket.create_server((LOOPBACK, 0)) as silent, ThreadPoolExecutor(2) as pool:
        boards[0].say("place 0", f"{LOOPBACK} {silent.getsockname()[1]}")
        both = [pool.submit(connections, board, LOOPBACK) for board in boards[1:]]
        for one in both:
            with pytest.raises(AbsentError, match="process 0 has not done its part within 1 s"):
                one.result()
