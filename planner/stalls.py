"""Why compute waits: every moment in which it is idle, blamed on what it waits for.

Back from an op that starts late, along what ended last before each start, to the end of the
compute op before it: whatever ran at a moment of that wait is what compute waited for then.

    compute  F3 |........| F4            h2d 3 ms of it, host 1 ms
    h2d         |  P4 P5 |
    host     U4 |
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from plans.schema import Op, Program, parse_id


@dataclass(frozen=True)
class Stall:
    """µs per round that compute waits in one part of the round for one resource."""

    part: str  # forward, backward
    resource: str  # h2d, d2h, host, memory
    us: int


def stalls(program: Program) -> tuple[Stall, ...]:
    """The waits of device 0's compute in a steady round, the longest first."""
    found: Counter[tuple[str, str]] = Counter()
    steady = _Steady(program)
    compute = steady.queue("0.compute")
    for before, op in zip([compute[-1], *compute[:-1]], compute, strict=True):
        ended = before.end_us - (program.period_us if op is compute[0] else 0)
        for resource, us in steady.blamed(op, ended):
            found[_part(op), resource] += us
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return tuple(Stall(part, resource, us) for (part, resource), us in ranked if us)


def _part(op: Op) -> str:
    return "forward" if parse_id(op.id).kind == "F" else "backward"


class _Steady:
    """A round among rounds: who ended last before an op could start."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ops = {op.id: op for op in program.round}
        self.queues: dict[str, list[Op]] = {}
        for op in program.round:
            self.queues.setdefault(op.stream, []).append(op)
        self.place = {op.id: i for queue in self.queues.values() for i, op in enumerate(queue)}

        self.busiest = _resource(max(self.queues.values(), key=_load)[0])

    def queue(self, stream: str) -> list[Op]:
        return sorted(self.queues[stream], key=lambda op: op.start_us)

    def waits(self, op: Op, lap: int) -> Iterator[tuple[Op, int]]:
        """What an op in round `lap` waits for: ops and their rounds."""
        for edge in op.after:
            back = edge.endswith("@-1")
            yield self.ops[edge.removesuffix("@-1")], lap - back
        queue, place = self.queues[op.stream], self.place[op.id]
        yield queue[place - 1], lap - (place == 0)

    def blamed(self, op: Op, since: int) -> Iterator[tuple[str, int]]:
        """Resources and how long each kept `op` from starting after `since`."""
        lap, at, period = 0, op, self.program.period_us
        upper = op.start_us
        while upper > since:
            before, turn = max(
                self.waits(at, lap), key=lambda item: item[0].end_us + item[1] * period
            )
            end, start = before.end_us + turn * period, before.start_us + turn * period
            if end < upper:  # it starts late only to keep pace with the busiest stream
                yield self.busiest, upper - max(since, end)
                upper = max(since, end)
                continue
            yield _resource(before), upper - max(since, start)
            if start >= upper:  # of no length: go on from it all the same
                at, lap = before, turn
                continue
            upper, at, lap = max(since, start), before, turn


def _load(queue: list[Op]) -> int:
    return sum(op.end_us - op.start_us for op in queue)


def _resource(op: Op) -> str:
    """The stream's kind; compute in the way of a copy means that its memory is not free yet."""
    kind = "host" if op.stream.startswith("host") else op.stream.partition(".")[2]
    return "memory" if kind == "compute" else kind
