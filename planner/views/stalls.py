"""Stalls of compute and other reasons why a plan misses its bound, in numbers and in words.

Every moment in which compute is idle is blamed on one resource.

Back from an op that starts late, along what ended last before each start, to the end of the
compute op before it: whatever ran at a moment of that wait is what compute waited for then.

    compute  F3 |........| F4            h2d 3 ms of it, host 1 ms
    h2d         |  P4 P5 |
    host     U4 |
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from plans.schema import Op, Plan, Program, Task, parse_id
from profiles.units import show_us

LARGE_GAP_PPM = 50_000

_CAUSES = {
    "h2d": "copies to the device",
    "d2h": "copies to the host",
    "p2p": "copies between devices",
    "host": "updates on the host",
    "memory": "memory that is still in use",
}
_MOST = 4  # waits told per program
_SWEEP = (
    "  python -m planner sweep PROFILE --device-memory SIZES [--h2d RATES] plans with more memory "
    "or faster links"
)


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
        """The ops, with their rounds, that an op in round `lap` waits for."""
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


def diagnosis(plan: Plan) -> list[str]:
    """Lines; none for a plan near its bound."""
    if plan.prediction.gap_ppm < LARGE_GAP_PPM:
        return []
    tasks = {task.name: task for task in plan.tasks}
    lines = [
        f"  {program.name}: {line}"
        for program in plan.programs
        if not program.evaluates
        for line in _program(program, tasks)
    ]
    return [*lines, _SWEEP]


def _program(program: Program, tasks: dict[str, Task]) -> Iterator[str]:
    period = max(1, program.period_us)
    for stall in stalls(program)[:_MOST]:
        if stall.us * 100 >= period:
            yield (
                f"in {stall.part}, compute waits {show_us(stall.us)} ({stall.us / period:.1%} of a "
                f"round) for {_CAUSES[stall.resource]}"
            )
    twice = sum(op.end_us - op.start_us for op in program.round if _recomputed(op.id, tasks))
    if twice * 100 >= period:
        yield (
            f"{show_us(twice)} ({twice / period:.1%} of a round) goes into forwards that backward "
            "computes again, for want of memory"
        )


def _recomputed(op_id: str, tasks: dict[str, Task]) -> bool:
    name = parse_id(op_id)
    if name.kind != "F" or name.task not in tasks:
        return False
    return tasks[name.task].shards[name.number].activations == "recompute"
