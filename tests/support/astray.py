"""Plans of several nodes followed moment by moment, without `plans.order`: every op must find in
the store of its node what was written last anywhere."""

from collections.abc import Iterator

from plans.schema import Plan, Segment
from plans.timing import duration_us


def astray(plan: Plan) -> list[str]:
    """All that is wrong with the plan's nodes."""
    moments = sorted(  # at one time what ends goes before what begins
        (us, begins, number)
        for number, one in enumerate(plan.segments)
        for us, begins in ((one.start_us, True), (one.end_us, False))
    )
    found = [*_together(plan)]
    newest: dict[str, int] = {}
    has: dict[tuple[int, str], int] = {}
    for at, (_, begins, number) in enumerate(moments):
        segment = plan.segments[number]
        used = set(_used(plan, segment, reads=begins))
        for node, name in used:
            if not begins:
                newest[name] = has[node, name] = at
            elif has.get((node, name), 0) != newest.get(name, 0):
                found.append(f"{segment.program} reads an old {name} on node {node}")
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


def _together(plan: Plan) -> Iterator[str]:
    """Segments that last too long; what shares a device or a task at the same time."""
    for segment in plan.segments:
        us = duration_us(plan.program(segment.program), segment.rounds)
        if segment.end_us - segment.start_us != us:
            yield f"{segment.program} lasts {segment.end_us - segment.start_us}, not {us}"
    claims = [(one, {*one.devices, *plan.trained(one)}) for one in plan.segments]
    for at, (one, mine) in enumerate(claims):
        for other, theirs in claims[:at]:
            if mine & theirs and one.start_us < other.end_us and other.start_us < one.end_us:
                yield f"{one} and {other} share {mine & theirs}"
