"""The ops of a program before they have times, typed: text is written once, when they have them.

Who an op is (`plans.schema.OpName`), where it runs (`Stream`), how long it takes and what it
touches. A program's ops follow each other in the order of their meaning: running them one by one
would be right.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plans.schema import Op, OpName, Role


class Stream(NamedTuple):
    """A queue of a device, or the host's for the updates of what that device trains."""

    device: int
    kind: str  # "compute", "h2d", "d2h" or "host"

    def __str__(self) -> str:
        return f"host.{self.device}" if self.kind == "host" else f"{self.device}.{self.kind}"


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
