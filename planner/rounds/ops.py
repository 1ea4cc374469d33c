"""The ops of a program before they have times, typed: text is written once, when they have them.

Who an op is and where it runs (`plans.ops`), how long it takes and what it
touches. A program's ops follow each other in the order of their meaning: running them one by one
would be right.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plans.ops import OpName, Stream
from plans.schema import Op, Role


class Entry(NamedTuple):
    """An op without times, and how long it takes. reads, writes: roles, and buffers by name."""

    name: OpName
    stream: Stream
    us: int
    reads: Mapping[Role, str]
    writes: Mapping[Role, str]
    transient_bytes: int = 0

    def written(self, start_us: int, after: Sequence[str] = ()) -> Op:
        """The op as a plan has it."""
        return Op(
            id=str(self.name),
            stream=str(self.stream),
            start_us=start_us,
            end_us=start_us + self.us,
            after=tuple(after),
            reads=dict(self.reads),
            writes=dict(self.writes),
            transient_bytes=self.transient_bytes,
        )


def queued(entries: Sequence[Entry]) -> dict[Stream, list[int]]:
    """The positions of each stream's ops, in the order of meaning."""
    queues: dict[Stream, list[int]] = {}
    for at, entry in enumerate(entries):
        queues.setdefault(entry.stream, []).append(at)
    return queues
