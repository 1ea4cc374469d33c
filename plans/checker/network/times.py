"""Transfers begin when what they wait for has ended, segments when their transfers have."""

from collections.abc import Iterator

from plans.order import rings, with_transfers
from plans.schema import Plan, Segment, Transfer


def transfer_order(plan: Plan) -> Iterator[str]:
    """Segments and transfers never wait for each other in a ring; told for one of them."""
    if plan.net:
        ids = [one.id for one in plan.net.transfers]
        yield from rings(plan, ids, with_transfers(plan))


def transfer_times(plan: Plan) -> Iterator[str]:
    """No transfer is predicted to start before what it waits for ends, nor its segment before it.

    Segments among themselves are another rule's."""
    if plan.net is None:
        return
    count, transfers = len(plan.segments), plan.net.transfers
    spans: list[Segment | Transfer] = [*plan.segments, *transfers]
    names = [f"segment {index}" for index in range(count)] + [one.id for one in transfers]
    for one in transfers:
        if one.end_us < one.start_us:
            yield f"{one.id}: lasts from {one.start_us} µs to {one.end_us} µs"
    for index, before in enumerate(with_transfers(plan)):
        for other in sorted(before):
            late = spans[index].start_us < spans[other].end_us
            if late and max(index, other) >= count:
                yield (
                    f"{names[index]}: starts at {spans[index].start_us} µs but waits for "
                    f"{names[other]}, which ends at {spans[other].end_us} µs"
                )
