"""Segments of no more than so many rounds: where tasks can be kept, stopped, and gone on from.

    a ████████████   b ██████      becomes      a ████ a ████ a ████   b ███ b ███

Each costs the entering and leaving of one more segment.
"""

from collections.abc import Mapping, Sequence

from planner.pairs import Together
from plans.metrics import duration_us
from plans.schema import Program, Segment


def parted(
    segments: Sequence[Segment],
    programs: Mapping[str, Program],
    pairs: Sequence[Together],
    rounds: int | None,
) -> list[Segment]:
    """The segments, none of more than `rounds` rounds, in the same order on every device and for
    every task, and none earlier than it was. None: as they are."""
    if rounds is None:
        return list(segments)
    known = {**programs, **{pair.program.name: pair.program for pair in pairs}}
    known |= {pair.rest.name: pair.rest for pair in pairs if pair.rest}
    free: dict[int | str, int] = {}
    out = []
    for segment in sorted(segments, key=lambda s: s.start_us):
        program, left = known[segment.program], segment.rounds
        users: list[int | str] = [*segment.devices, *program.tasks]
        while left:
            count = min(left, rounds)
            start = max(segment.start_us, *(free.get(user, 0) for user in users))
            end = start + duration_us(program, count)
            out.append(Segment(segment.program, segment.devices, count, start, end))
            free |= dict.fromkeys(users, end)
            left -= count
    return sorted(out, key=lambda s: (s.start_us, s.devices))
