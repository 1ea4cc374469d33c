"""Transfers between nodes: shards are brought to where segments read them but did not write them.

    node 0   |  a  |--a-->  | c |           a waits for its transfer, c for nothing
    node 1   |  b  |        |  a  |

A shard goes from the first node that has it as soon as it was written, in the order in which they
can go; transfers of a node follow each other. Segments keep their order on devices and of tasks.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

from msgspec import structs

from planner.inputs import Problem, Want
from planner.shards import Links, copy_us
from plans.order import Kept, Use, kept_bytes, nodes_of, uses, with_transfers
from plans.schema import Net, Plan, Transfer


class Need(NamedTuple):
    """Shards of a task that a segment needs on a node where they are not."""

    segment: int
    task: str
    source: int
    target: int
    shards: tuple[int, ...]


def needs(plan: Plan) -> Iterator[Need]:
    """All of a plan's, in the order of its segments. In the beginning every node has all shards."""
    tasks = {task.name: task for task in plan.tasks}
    known: dict[tuple[str, tuple[int, ...]], dict[Kept, Use]] = {}
    has: dict[Kept, set[int]] = {}  # the nodes with what was written last
    for number, segment in enumerate(plan.segments):
        program, nodes = plan.program(segment.program), nodes_of(plan, segment)
        if (segment.program, nodes) not in known:
            found = uses(program, [tasks[name] for name in program.tasks], nodes)
            known[segment.program, nodes] = dict(found)
        lacking: dict[tuple[str, int, int], list[int]] = {}
        for kept, use in known[segment.program, nodes].items():
            if kept in has:
                for target in sorted(use.reads - has[kept]):
                    way = kept[0], min(has[kept]), target
                    lacking.setdefault(way, []).append(kept[1])
                has[kept] |= use.reads
            if use.writes:
                has[kept] = set(use.writes)
        for (task, source, target), shards in lacking.items():
            yield Need(number, task, source, target, tuple(sorted(shards)))


def networked(problem: Problem, plan: Plan) -> Plan:
    """The plan with all transfers that it needs, and with times of segments that wait for them."""
    found = list(needs(plan))
    if not found:
        return plan
    free = _timed(problem, _with(problem, plan, found), shared=False)
    ready = [start for start, _ in free[len(plan.segments) :]]
    found = [found[at] for at in sorted(range(len(found)), key=ready.__getitem__)]
    made = _with(problem, plan, found)
    return _told(made, _timed(problem, made, shared=True))


def _with(problem: Problem, plan: Plan, found: Sequence[Need]) -> Plan:
    """The plan with these transfers, from 0 on each."""
    net, counts = Links.of(problem.device).net, Counter[str]()
    assert net
    transfers, total = list[Transfer](), 0
    for need in found:
        size = kept_bytes(plan.task(need.task), need.shards)
        name = f"{need.task}.net.X{counts[need.task]}"
        us = copy_us(net, size)
        transfers.append(Transfer(name, need.segment, need.source, need.target, need.shards, 0, us))
        counts[need.task] += 1
        total += size
    return structs.replace(plan, net=Net(total, tuple(transfers)))


def _timed(problem: Problem, plan: Plan, *, shared: bool) -> list[tuple[int, int]]:
    """When each segment and then each transfer starts and ends, as early as can be. shared:
    transfers wait for each other."""
    waits, count = with_transfers(plan), len(plan.segments)
    assert plan.net
    if not shared:
        waits[count:] = [{at for at in own if at < count} for own in waits[count:]]
    earliest = [
        max(problem.wants.get(name, Want()).start_us for name in plan.trained(segment))
        for segment in plan.segments
    ]
    earliest += [0] * len(plan.net.transfers)
    lasts = [one.end_us - one.start_us for one in plan.segments]
    lasts += [one.end_us - one.start_us for one in plan.net.transfers]
    found = [(0, 0)] * len(lasts)
    for at in TopologicalSorter(dict(enumerate(waits))).static_order():
        start = max(earliest[at], *(found[other][1] for other in waits[at]), 0)
        found[at] = start, start + lasts[at]
    return found


def _told(plan: Plan, times: Sequence[tuple[int, int]]) -> Plan:
    """The plan with these times, segments in order of their start."""
    assert plan.net
    count, transfers = len(plan.segments), plan.net.transfers
    line = sorted(range(count), key=lambda at: (times[at][0], plan.segments[at].devices))
    number = {at: place for place, at in enumerate(line)}
    segments = (
        structs.replace(plan.segments[at], start_us=times[at][0], end_us=times[at][1])
        for at in line
    )
    moves = (
        structs.replace(one, segment=number[one.segment], start_us=start, end_us=end)
        for one, (start, end) in zip(transfers, times[count:], strict=True)
    )
    net = structs.replace(plan.net, transfers=tuple(moves))
    return structs.replace(plan, segments=tuple(segments), net=net)
