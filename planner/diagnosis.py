"""What keeps a plan from its bound, in words: what compute waits for and where, what it does twice,
and what two tasks gain together."""

from collections.abc import Iterator

from planner.stalls import stalls
from plans.schema import Plan, Program, Task, parse_id
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


def diagnosis(plan: Plan) -> list[str]:
    """Lines; none for a plan near its bound."""
    lines = [
        f"  {joint.program}: together {show_us(joint.joint_us)}, one after the other "
        f"{show_us(joint.alone_us)}: {1 - joint.joint_us / max(1, joint.alone_us):.1%} gained"
        for joint in plan.solver.joint
    ]
    if plan.prediction.gap_ppm < LARGE_GAP_PPM:
        return lines
    tasks = {task.name: task for task in plan.tasks}
    for program in (program for program in plan.programs if not program.evaluates):
        lines += [f"  {program.name}: {line}" for line in _program(program, tasks)]
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
