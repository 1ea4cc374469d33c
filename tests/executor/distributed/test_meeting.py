"""Processes meet by notes in a store, fetch what others have, and wait for none without end."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.handmade import assemble, program
from support.noded import on_nodes
from support.parts import streamed_part
from torch.distributed import HashStore

from executor.distributed import fetching, meeting
from executor.distributed.fetching import Stores
from executor.distributed.meeting import AbsentError, Board, joined
from executor.distributed.world import World
from executor.errors import RunError
from plans.part import Part

SIZE = 3


def met(store: HashStore, limit_s: float = 20) -> list[Board]:
    """So many processes that have met."""
    with ThreadPoolExecutor(SIZE) as pool:
        coming = [
            pool.submit(joined, World(rank, SIZE), store, store, limit_s) for rank in range(SIZE)
        ]
        return [one.result() for one in coming]


def test_notes_of_an_earlier_start_do_not_count() -> None:
    """They lie in the same store, under the same keys."""
    store = HashStore()
    before = met(store)
    before[0].say("verdict", "old")
    one, two, three = met(store)
    assert two.read("verdict") is None
    one.say("verdict", "new")
    assert three.wait({"verdict": 0}) == {"verdict": "new"}
    assert before[1].read("verdict") == "old"


def test_who_does_not_come_is_named() -> None:
    """After the limit, by process 0, and where that does not come by the others."""
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(joined, World(1, 4), store, store, 20)
        with pytest.raises(
            AbsentError, match=r"^processes \[2, 3\] have not come within 1 s; raise --st"
        ):
            joined(World(0, 4), store, store, 1)
        coming.result()
    empty = HashStore()
    with pytest.raises(AbsentError, match=r"process 0 has not come within 0\.3 s") as late:
        joined(World(1, 2), empty, empty, 0.3)
    assert late.value.teller == 1


@pytest.mark.parametrize(("me", "victim"), [(0, 2), (1, 0)])
def test_who_is_stopped_is_killed_and_named(
    me: int, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the limit, by process 0 and by those that wait for it; not who is only late."""
    stopped, late = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    stopped.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(
        meeting, "siblings", lambda: {3 - me - victim: late.pid, victim: stopped.pid}
    )
    monkeypatch.setattr(meeting, "_HALT_S", 0.2)
    monkeypatch.setattr(meeting, "_MATES_S", 0.1)
    store = HashStore()
    told = rf"^process {victim} has been stopped for 0\.\d s, and is kill"
    with pytest.raises(AbsentError, match=told):
        joined(World(me, 3), store, store, 20)
    assert stopped.wait(10) == -signal.SIGKILL
    assert late.poll() is None
    late.kill()
    late.wait()


def test_what_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the node that does not send it, whose first process was asked to."""
    part = streamed_part("a")
    plan = on_nodes(assemble([part], [program("a", 1, [part])], [("a", (1,), 2)]), (0, 1))

    def late(_: object) -> None:
        raise RuntimeError("Timed out\nwaiting")

    waits = SimpleNamespace(wait=late)
    monkeypatch.setattr(fetching, "_groups", lambda _: {1: "group"})
    monkeypatch.setattr(fetching.dist, "get_process_group_ranks", lambda _: [0, 1])
    monkeypatch.setattr(fetching.dist, "irecv", lambda *_, **__: waits)
    memory: Any = SimpleNamespace(flat=torch.zeros(plan.host.bytes, dtype=torch.uint8))
    asked: list[tuple[int, str, list[int]]] = []
    with pytest.raises(
        RunError, match=r"^task a does not come from node 1: .*Timed out waiting; raise"
    ):
        Stores(Part(plan, (0, 1)), memory, 1.0).bring("a", lambda *told: asked.append(told))
    assert asked == [(1, "a", list(range(len(plan.tasks[0].shards))))]
