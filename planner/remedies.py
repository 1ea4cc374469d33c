"""What would make a plan faster, found with the load program: more memory, a faster link, another
microbatch. How much faster is its estimate, relative to its estimate for the plan as it is."""

from collections.abc import Iterator
from dataclasses import replace

from planner.bounds import phase_us
from planner.choice import Choice
from planner.costs import Links, TaskCosts
from planner.problem import Effort, Problem
from plans.schema import Program, Remedy
from profiles.schema import Rate, Task

_MEMORY = (5, 6, 8, 12, 16)  # quarters of what there is, the first that helps is named
_LINK = 2  # times as fast
_WORTH = 20  # less than 1/n of the period is no remedy


def remedies(
    problem: Problem, task: Task, choice: Choice, program: Program, effort: Effort
) -> Iterator[Remedy]:
    """Changes that the load program thinks worth it."""
    links, size = Links.of(problem.device), problem.device_bytes
    now = _estimate(choice.costs, links, size, effort)
    if not now:
        return

    def period_us(estimate: int) -> int:
        return program.period_us * estimate // now

    def pays(estimate: int | None) -> bool:
        return bool(estimate) and period_us(estimate or 0) * _WORTH < program.period_us * (
            _WORTH - 1
        )

    for quarters in _MEMORY:
        more = size * quarters // 4
        estimate = _estimate(choice.costs, links, more, effort)
        if estimate and pays(estimate):
            needed = more + problem.taken_bytes
            yield Remedy(program.name, "device-memory", needed, period_us(estimate))
            break
    faster = _faster(links)
    estimate = _estimate(choice.costs, faster, size, effort)
    if estimate and pays(estimate):
        yield Remedy(program.name, "h2d", faster.h2d.bytes_per_s, period_us(estimate))
    for batch in task.batches:
        costs = replace(choice.costs, microbatch=batch.microbatch)
        if costs.plannable and batch.microbatch != choice.costs.microbatch:
            estimate = _estimate(costs, links, size, effort)
            if estimate and pays(estimate):
                yield Remedy(program.name, "microbatch", batch.microbatch, period_us(estimate))


def _estimate(costs: TaskCosts, links: Links, device_bytes: int, effort: Effort) -> int | None:
    return phase_us([costs], links, device_bytes, effort, divisions=0)


def _faster(links: Links) -> Links:
    def rate(old: Rate) -> Rate:
        return Rate(old.bytes_per_s * _LINK, old.latency_us)

    return replace(
        links,
        h2d=rate(links.h2d),
        d2h=rate(links.d2h),
        h2d_both=rate(links.h2d_both),
        d2h_both=rate(links.d2h_both),
    )
