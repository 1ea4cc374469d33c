"""Plans of several nodes followed moment by moment, without `plans.order`: every op must find in
the store of its node what was written last anywhere."""

from collections.abc import Iterator
from typing import NamedTuple

from plans.ops import parse_id
from plans.schema import Plan, Segment, Transfer
from plans.timing import duration_us


class _Moment(NamedTuple):
    """At one time what ends goes before what begins."""

    us: int
    begins: bool
    number: int
    what: Segment | Transfer


def astray(plan: Plan) -> list[str]:
    """All that is wrong with the plan's nodes and transfers."""
    transfers = plan.net.transfers if plan.net else ()
    moments = [
        _Moment(us, begins, number, one)
        for line in (plan.segments, transfers)
        for number, one in enumerate(line)
        for us, begins in ((one.start_us, True), (one.end_us, False))
    ]
    found = [*_together(plan, transfers)]
    newest: dict[str, int] = {}
    has: dict[tuple[int, str], int] = {}
    for at, (_, begins, _, what) in enumerate(sorted(moments, key=lambda m: m[:3])):
        if isinstance(what, Segment):
            used = set(_used(plan, what, reads=begins))
            if begins:
                late = {
                    (n, name) for n, name in used if has.get((n, name), 0) != newest.get(name, 0)
                }
                found += [f"{what.program} reads an old {name} on node {n}" for n, name in late]
            else:
                for n, name in used:
                    newest[name] = has[n, name] = at
        else:
            for name in _kept(plan, what):
                if begins and has.get((what.source, name), 0) != newest.get(name, 0):
                    found.append(f"{what.id} takes an old {name} from node {what.source}")
                if not begins:
                    has[what.target, name] = has.get((what.source, name), 0)
    return found


def _used(plan: Plan, segment: Segment, *, reads: bool) -> Iterator[tuple[int, str]]:
    """Node and name of the parameters and states that a segment reads, or writes, in stores."""
    host = {buffer.name for buffer in plan.host.buffers}
    for op in plan.program(segment.program).ops:
        left, _, right = op.stream.partition(".")
        node = plan.devices[segment.devices[int(right if left == "host" else left)]].node
        for name in (op.reads if reads else op.writes).values():
            if name in host and name.endswith((".param", ".state")):
                yield node, name


def _kept(plan: Plan, transfer: Transfer) -> list[str]:
    """The names of what a transfer brings."""
    task = parse_id(transfer.id).task
    names = {buffer.name for buffer in plan.host.buffers}
    every = [f"{task}.s{k}.{role}" for k in transfer.shards for role in ("param", "state")]
    return [name for name in every if name in names]


def _together(plan: Plan, transfers: tuple[Transfer, ...]) -> Iterator[str]:
    """Segments that last too long or wait for nothing; what shares a device, a task or a node at
    the same time."""
    for segment in plan.segments:
        us = duration_us(plan.program(segment.program), segment.rounds)
        if segment.end_us - segment.start_us != us:
            yield f"{segment.program} lasts {segment.end_us - segment.start_us}, not {us}"
    claims = [(one, {*one.devices, *plan.trained(one)}) for one in plan.segments] + [
        (one, {f"node {one.source}", f"node {one.target}", parse_id(one.id).task})
        for one in transfers
    ]
    for at, (one, mine) in enumerate(claims):
        for other, theirs in claims[:at]:
            if mine & theirs and one.start_us < other.end_us and other.start_us < one.end_us:
                yield f"{one} and {other} share {mine & theirs}"
    for transfer in transfers:
        if transfer.end_us > plan.segments[transfer.segment].start_us:
            yield f"segment {transfer.segment} begins before {transfer.id} is done"
