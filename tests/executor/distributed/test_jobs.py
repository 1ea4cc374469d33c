"""Jobs between the stores of nodes that do not end well, with ends that say so."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from support.handmade import assemble, program
from support.netted import moving, on_nodes
from support.streaming import streamed_part

from executor.distributed.jobs import Going, Jobs, TransferRun
from executor.distributed.messages import Carried, Carry
from executor.distributed.stores import Job
from executor.errors import RunError
from executor.replay import Failure, Traffic
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


def transferred(trouble: str) -> tuple[list[Failure], list[tuple[object, ...]], Traffic]:
    """The failures, the ops and the traffic of a transfer whose first end has this trouble."""
    part = streamed_part("a")
    plan = assemble([part], [program("a", 1, [part])], [("a", (0,), 2), ("a", (1,), 2)])
    plan = moving(plan, (0, 1))
    jobs, mesh, carrier = led(plan)
    failures, ops = list[Failure](), list[tuple[object, ...]]()
    recorder = SimpleNamespace(op=lambda *op, metered: ops.append(op))
    halt = SimpleNamespace(stopped=False, tell=lambda: None)
    traffic = Traffic()
    setup: Any = SimpleNamespace(
        recorder=recorder, halt=halt, failed=failures.append, traffic=traffic
    )
    run = TransferRun(jobs, 0, setup)
    run.start()
    assert [rank for rank, _ in mesh.sent] == [2]
    carrier.ended(trouble)
    assert not run.ended
    jobs.hear(2, Carried(0, over=True))
    assert run.ended
    return failures, ops, traffic


def test_a_transfer_has_ended_when_both_ends_have() -> None:
    """It is noted as an op, its bytes are counted, and the other node has the task as well."""
    failures, ops, traffic = transferred("")
    assert not failures
    assert [op[:3] for op in ops] == [(1, "a.net.X0", 0)]
    assert traffic.net.transfers == 1
    assert traffic.net.bytes > 0


def test_a_transfer_that_fails_ends_the_run() -> None:
    """Whatever the other end says, and though tasks may be dropped."""
    failures, ops, _ = transferred("the connection is lost")
    assert [str(one) for one in failures] == [
        "a.net.X0 on net.0 in round 0: the connection is lost"
    ]
    assert failures[0].fatal
    assert not ops


def test_what_does_not_come_is_said() -> None:
    """With the node that does not send it, and sooner where a process is gone."""
    part = streamed_part("a")
    plan = assemble([part], [program("a", 1, [part])], [("a", (1,), 2)])
    jobs, mesh, _ = led(on_nodes(plan, (0, 1)))
    with pytest.raises(RunError, match="no more of task a comes from node 1"):
        jobs.bring("a", lambda: None)
    assert [(rank, message.source, message.target) for rank, message in mesh.sent] == [(2, 1, 0)]

    def gone() -> None:
        raise RunError("process 2 is gone")

    with pytest.raises(RunError, match="process 2 is gone"):
        jobs.bring("a", gone)


def test_the_first_trouble_counts() -> None:
    told: list[str] = []
    going = Going(Job(0, "a", (0,), 0, 1), told.append)
    going.end(1, "is full")
    assert not going.ended
    going.end(0, "is closed")
    assert going.ended
    assert told == ["is full"]
