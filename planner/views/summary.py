"""A plan in figures: what scripts read of it, and what its host memory holds."""

from typing import Any

from planner.views.layout import bubble, layout, stages
from plans.order import store_bytes
from plans.schema import Buffer, Plan, Program, Task
from plans.timing import device_times, kind_rounds, kinds_of, step_us, task_spans, union


def summary(plan: Plan) -> dict[str, Any]:
    """The plan's figures as `build --json` and `show --json` print them.

    period_us: of a step once the run is steady, the mean one where they differ (`step_us`).
    kinds: of programs with several kinds of rounds, the tokens of each kind's microbatches, its
    period and all its rounds. steps: what a step of each task is, in words.
    """
    prediction, devices = plan.prediction, device_times(plan)
    periods = {program.name: program.period_us for program in plan.programs}
    return {
        "makespan_us": prediction.makespan_us,
        "period_us": step_us(plan),
        "periods_us": periods,
        "kinds": {
            program.name: [
                {"tokens": list(kind.tokens), "period_us": kind.period_us, "rounds": rounds}
                for kind, rounds in zip(kinds_of(program), kind_rounds(plan, program), strict=True)
            ]
            for program in plan.programs
            if program.kinds
        },
        "lower_bound_us": prediction.lower_bound_us,
        "lower_bound_name": prediction.lower_bound_name,
        "gap": prediction.gap_ppm / 1e6,
        "configuration_us": prediction.configuration_us,
        "mean_completion_us": mean_completion_us(plan),
        "bounds": {bound.name: bound.us for bound in prediction.bounds},
        "exposed_copy_us": sum(device.exposed_copy_us for device in devices),
        "peak_bytes": [device.peak_bytes for device in devices],
        "host_bytes": plan.host.bytes,
        "host": host_bytes(plan),
        "node_host_bytes": store_bytes(plan),
        "policy": plan.solver.policy,
        "status": plan.solver.status,
        "estimated": plan.estimated,
        "steps": {task.name: step_words(task) for task in plan.tasks if not task.lengths},
        "layouts": {
            program.name: {task: _layout(program, task) for task in program.tasks}
            | {"bubble": bubble(program)}
            for program in plan.programs
            if program.devices > 1
        },
    }


def _layout(program: Program, task: str) -> dict[str, Any]:
    """Where a program on several devices, by their numbers in it, runs the shards of a task."""
    found = stages(program, task)
    return {"layout": layout(found), "stages": [stage._asdict() for stage in found]}


def step_words(task: Task) -> str:
    """A step in words, beside one of a plain loop over whole batches."""
    parts, why = task.parts, f" ({task.parts.why})" * bool(task.parts.why)
    if task.microbatches == 1:
        return f"the whole batch of {task.batch}{why * parts.together}"
    cut = f"{task.microbatches} microbatches of {task.microbatch}"
    if parts.kind == "whole":
        what = "statistics" if "Norm" in parts.why else "loss"
        return f"{cut}, {what} of each microbatch alone{why}, as asked"
    if parts.kind == "additive" and parts.why:
        return f"{cut}, not compared with the whole batch{why}"
    weighted = f", weighted by {parts.why}" if parts.kind == "weighted" else ""
    return f"{cut}, gradients as of the whole batch{weighted}"


def mean_completion_us(plan: Plan) -> int:
    """The mean of the tasks' ends."""
    ends = [end_us for _, end_us in task_spans(plan).values()]
    return round(sum(ends) / len(ends))


_HELD = {
    "param": "parameters",
    "base": "bases",
    "state": "optimizer state",
    "grad": "gradients",
    "x": "boundaries",
    "a": "activations",
    "norm": "norms",
}


def host_bytes(plan: Plan) -> dict[str, int]:
    """Bytes of the host store by kind; bytes that change hands count in each."""
    found: dict[str, list[Buffer]] = {}
    for buffer in plan.host.buffers:
        _, item, *rest = buffer.name.split(".")
        kind = rest[0] if item[0] == "s" else item.rstrip("0123456789")
        found.setdefault(_HELD.get(kind, "other"), []).append(buffer)
    kinds = sorted(found, key=[*_HELD.values(), "other"].index)
    return {
        kind: sum(
            end - start for start, end in union((b.offset, b.offset + b.bytes) for b in found[kind])
        )
        for kind in kinds
    }
