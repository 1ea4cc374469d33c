"""Jobs from the stores of other nodes that do not end well, with ends that say so."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from support.handmade import assemble, program
from support.noded import on_nodes
from support.parts import streamed_part

from executor.distributed.jobs import Going, Jobs
from executor.distributed.messages import Carry
from executor.distributed.stores import Job
from executor.errors import RunError
from plans.schema import Plan


class Mesh:
    """Notes what the first processes of other nodes are told."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Carry]] = []

    def send(self, rank: int, message: Carry) -> None:
        self.sent.append((rank, message))


class Carrier:
    """Begins jobs and ends none."""

    def __init__(self) -> None:
        self.ended: Any = None

    def start(self, job: Job, moved: object, ended: object) -> None:
        self.ended = ended


def led(plan: Plan) -> tuple[Jobs, Mesh, Carrier]:
    """Jobs of two nodes with two processes each."""
    mesh, carrier = Mesh(), Carrier()
    jobs: Any = Jobs
    return jobs(plan, mesh, carrier, SimpleNamespace(), [0, 2], 0.2), mesh, carrier


def test_what_does_not_come_is_said() -> None:
    """With the node that does not send it, and sooner where a process is gone."""
    part = streamed_part("a")
    plan = assemble([part], [program("a", 1, [part])], [("a", (1,), 2)])
    jobs, mesh, _ = led(on_nodes(plan, (0, 1)))
    with pytest.raises(RunError, match="no more of task a comes from node 1"):
        jobs.bring("a", lambda: None)
    assert [(rank, message.source) for rank, message in mesh.sent] == [(2, 1)]

    def gone() -> None:
        raise RunError("process 2 is gone")

    with pytest.raises(RunError, match="process 2 is gone"):
        jobs.bring("a", gone)


def test_what_cannot_be_sent_is_said() -> None:
    """The first trouble counts, whatever the other end says."""
    going = Going(Job(0, "a", (0,), 1))
    going.end(1, "is full")
    assert not going.wait(0)
    going.end(0, "is closed")
    assert going.wait(0)
    assert going.trouble == "is full"
