"""Stalls of compute and other reasons why a plan misses its bound, in numbers and in words.

Every moment in which compute is idle is blamed on one resource.

Back from an op that starts late, along what ended last before each start, to the end of the
compute op before it: whatever ran at a moment of that wait is what compute waited for then.

    compute  F3 |........| F4            h2d 3 ms of it, host 1 ms
    h2d         |  P4 P5 |
    host     U4 |
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from plans import graph
from plans.ops import Lane, Stream
from plans.schema import Op, Plan, Program
from plans.timing import busy_us
from profiles.units import show_us

LARGE_GAP_PPM = 50_000

CAUSES = {
    "h2d": "copies to the device",
    "d2h": "copies to the host",
    "p2p": "copies between devices",
    "host": "updates on the host",
    "memory": "memory that is still in use",
    "others": "what other devices compute",
}
Waits = dict[str, list[tuple[Op, int]]]
"""For each op those that it waits for, and how many rounds before its own."""

_MOST = 4  # waits told per program
_SWEEP = (
    "  python -m planner sweep PROFILE --device-memory SIZES [--h2d RATES] plans with more memory "
    "or faster links"
)


@dataclass(frozen=True)
class Stall:
    """µs per round that compute waits in one part of the round for one resource, for most of it
    for the op `most`; "": it only keeps pace with the busiest stream."""

    part: str  # forward, backward
    resource: str  # h2d, d2h, p2p, host, memory, others
    us: int
    most: str = ""


def stalls(program: Program, *devices: int) -> tuple[Stall, ...]:
    """The waits of some devices' compute in a steady round, those of one part for one resource
    taken together, the longest first."""
    found: dict[tuple[str, str], Counter[str]] = {}
    for _, wait in _waited(program, devices):
        found.setdefault((wait.part, wait.resource), Counter())[wait.most] += wait.us
    made = (Stall(*key, ops.total(), max(ops, key=ops.__getitem__)) for key, ops in found.items())
    ranked = sorted(made, key=lambda one: (-one.us, one.part, one.resource))
    return tuple(one for one in ranked if one.us)


def waited_us(program: Program) -> list[Counter[str]]:
    """By device the µs of a steady round that its compute waits, by what it waits for."""
    found = [Counter[str]() for _ in range(program.devices)]
    for device, wait in _waited(program, range(program.devices)):
        found[device][f"waits for {CAUSES[wait.resource]}"] += wait.us
    return found


def _waited(program: Program, devices: Iterable[int]) -> Iterator[tuple[int, Stall]]:
    """The single waits of devices' compute in a steady round, each with its device."""
    queues: dict[str, list[Op]] = {}
    for op in program.round:
        queues.setdefault(op.stream, []).append(op)
    waits = {
        op.id: [(program.round[place], lag) for place, lag in (*own[1:], own[0])]
        for op, own in zip(program.round, graph.waits(program.round), strict=True)
    }
    ((busiest, _),) = busy_us(program.round).most_common(1)
    for device in devices:
        compute = sorted(queues.get(f"{device}.compute", ()), key=lambda op: op.start_us)
        ended = compute[-1].end_us - program.period_us if compute else 0
        for op in compute:
            part = "forward" if op.name.kind == "F" else "backward"
            for before, us in _blamed(op, ended, waits, program.period_us):
                resource = _resource(before.queue if before else busiest, device)
                yield device, Stall(part, resource, us, before.id if before else "")
            ended = op.end_us


def _blamed(op: Op, since: int, waits: Waits, period: int) -> Iterator[tuple[Op | None, int]]:
    """The ops that kept `op` from starting after `since`, and for how long each; None: it starts
    late only to keep pace with the busiest stream."""
    shift, upper = 0, op.start_us  # of the round that `op` is in by now
    while upper > since:
        op, back = max(waits[op.id], key=lambda item: item[0].end_us - item[1] * period)
        shift -= back * period
        end = op.end_us + shift
        if end < upper:
            yield None, upper - max(since, end)
            upper = max(since, end)
        start = max(since, op.start_us + shift)
        if start < upper:  # else it has no length: go on from it all the same
            yield op, upper - start
            upper = start


_COMPUTED = {"F": "forwards", "B": "backwards", "I": "backwards", "W": "backwards"}
_COMPUTED |= {"U": "updates on the device"}


def parts_of_round(plan: Plan, program: Program) -> dict[str, int]:
    """µs of a round by what a device computes or waits for, on average of the program's devices."""
    parts, twice = Counter[str](), {op.id for op in recomputed(plan, program)}
    for op in program.round:
        if op.queue.lane is Lane.COMPUTE:
            part = _COMPUTED.get(op.name.kind, "copies within the device")
            parts["forwards computed again" if op.id in twice else part] += op.us
    for stall in stalls(program, *range(program.devices)):
        parts[f"waits in {stall.part} for {CAUSES[stall.resource]}"] += stall.us
    return {part: us // program.devices for part, us in parts.items()}


def _resource(stream: Stream, device: int) -> str:
    """The stream's kind; compute of its own in the way of a device's copy means that its memory is
    not free yet."""
    if stream.lane is not Lane.COMPUTE:
        return stream.lane
    return "memory" if stream.device == device else "others"


def diagnosis(plan: Plan) -> list[str]:
    """Lines; none for a plan near its bound."""
    if plan.prediction.gap_ppm < LARGE_GAP_PPM:
        return []
    programs = (program for program in plan.programs if not program.evaluates)
    lines = [f"  {one.name}: {line}" for one in programs for line in _program(plan, one)]
    return [*lines, _SWEEP]


def _program(plan: Plan, program: Program) -> Iterator[str]:
    """The longest waits and what is computed twice, as means over the program's devices."""
    count = program.devices
    whole = max(1, program.period_us) * count
    where = f", on average of {count} devices," if count > 1 else ""
    for stall in stalls(program, *range(count))[:_MOST]:
        if stall.us * 100 >= whole:
            most = f", most for {stall.most}" if count > 1 and stall.most else ""
            yield (
                f"in {stall.part}, compute waits{where} {show_us(stall.us // count)} "
                f"({stall.us / whole:.1%} of a round) for {CAUSES[stall.resource]}{most}"
            )
    twice = sum(op.us for op in recomputed(plan, program))
    if twice * 100 >= whole:
        yield (
            f"{show_us(twice // count)} ({twice / whole:.1%} of a round) goes{where} into forwards "
            "that backward computes again, for want of memory"
        )


def recomputed(plan: Plan, program: Program) -> list[Op]:
    """The forwards of a round whose shard computes them once more in backward."""
    shards = {task.name: task.shards for task in plan.tasks}
    names = [(op, op.name) for op in program.round if op.name.kind == "F" and op.name.item == "s"]
    return [op for op, n in names if shards[n.task][n.number].keeps(n.index) == "recompute"]
