"""What process 0 fetches from other nodes, and does not get."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from support.handmade import assemble, program
from support.noded import on_nodes
from support.parts import streamed_part

from executor.distributed import fetching
from executor.distributed.fetching import Stores
from executor.errors import RunError
from plans.part import Part


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
