"""From a run to corrections: actual against predicted durations, by time and layer.

Ops that ran under the memory meter (compute in a program's first round) are slower than the rest
and left out. An op covers a shard, so its ratio counts for each of the shard's layers; a layer
takes the median over all rounds, microbatches and segments in which an op covered it.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import get_args

import numpy as np

from planner.inputs.corrections import (
    MOST,
    PPM,
    Corrections,
    Direction,
    LayerRatio,
    LinkRatio,
    Machine,
    TaskRatios,
    What,
)
from plans.runlog import RunLog
from plans.schema import Plan, Shard, Task
from plans.timing import OpBar
from plans.trace import happened
from profiles.errors import FormatError

Times = dict[tuple[str, What], dict[int, list[float]]]  # (task, what) -> layer -> ratios
_DIRECTIONS: dict[str, Direction] = {"h2d": "h2d", "d2h": "d2h", "p2p": "p2p"}
_SPREAD = 2  # copies whose predicted times differ by this factor tell latency and rate apart


def residuals(plan: Plan, log: RunLog, *, plan_sha256: str, log_sha256: str) -> Corrections:
    """Corrections from the log of a run of `plan`. FormatError when it shows nothing."""
    times: Times = {}
    copies: dict[Direction, list[tuple[int, int]]] = {}
    tasks = {task.name: task for task in plan.tasks}
    judges = {program.name for program in plan.programs if program.evaluates}
    # Layers do less in eval mode, and no loss was measured by itself.
    between_nodes = _between_nodes(plan)
    evaluating = {n for n, segment in enumerate(plan.segments) if segment.program in judges}
    for one in happened(plan, log):
        name = one.op.name
        if one.metered or not one.predicted_us or name.item == "batch":
            continue  # a batch's copy also waits for the user's data
        place = one.lane
        if place in _DIRECTIONS:
            way = _DIRECTIONS[place]
            if name.kind == "P" and "state" in one.op.reads and "param" in one.op.writes:
                way = "cast"
            elif way == "p2p" and between_nodes(one):
                way = "net"
            copies.setdefault(way, []).append((one.predicted_us, one.us))
        elif name.kind in "FBU" and one.segment not in evaluating:
            shard = tasks[name.task].shards[name.number]
            what = _timed(name.kind, shard, on_device=place == "compute")
            for layer in range(shard.first_layer, shard.end_layer):
                ratios = times.setdefault((name.task, what), {}).setdefault(layer, [])
                ratios.append(one.us / one.predicted_us)
    if not times and not copies:
        raise FormatError(
            "run log: it shows no op but those of the first round, which the memory meter slows "
            "down; run at least 2 steps"
        )
    device = plan.devices[0]
    return Corrections(
        inputs={**plan.inputs, "plan": plan_sha256, "log": log_sha256},
        machine=Machine(device.kind, device.threads, device.emulation),
        tasks=tuple(_task_ratios(task, times) for task in plan.tasks),
        links=tuple(_link_ratio(way, copies[way]) for way in sorted(copies)),
    )


def _between_nodes(plan: Plan) -> Callable[[OpBar], bool]:
    """Says of an X whether it goes from a device of one node to one of another."""
    spaces = {
        program.name: {buffer.name: int(buffer.space) for buffer in program.buffers}
        for program in plan.programs
    }

    def between(one: OpBar) -> bool:
        segment, (buffer,) = plan.segments[one.segment], one.op.writes.values()
        ends = one.op.queue.device, spaces[segment.program][buffer]
        return len({plan.devices[segment.devices[local]].node for local in ends}) > 1

    return between


def _timed(kind: str, shard: Shard, *, on_device: bool) -> What:
    """The time of the profile that an F, B or U of this shard showed.

    The last shard's activations are always recomputed: its B runs forward and backward at once.
    """
    again = shard.activations == "recompute"
    if kind == "F":
        return "forward" if again else "recompute"
    if kind == "B":
        return "recompute_backward" if again else "backward"
    return "update_device" if on_device else "update_host"


def _task_ratios(task: Task, times: Times) -> TaskRatios:
    found = {
        what: tuple(
            LayerRatio(layer, _ppm(median(ratios)), len(ratios))
            for layer, ratios in sorted(times[task.name, what].items())
        )
        for what in get_args(What)
        if (task.name, what) in times
    }
    return TaskRatios(task.name, task.workload, task.shards[-1].end_layer, found)


def _ppm(ratio: float) -> int:
    return min(max(round(ratio * PPM), PPM // MOST), PPM * MOST)


def _link_ratio(direction: Direction, copies: Sequence[tuple[int, int]]) -> LinkRatio:
    """The line through (predicted, actual) µs, least squares of the relative error.

    Through zero, by the median ratio, where the copies are of about one size: then latency and
    rate cannot be told apart. Each length counts with the median of its copies, as often as it
    was copied, so that a copy that was held up moves nothing.
    """
    by: dict[int, list[int]] = {}
    for predicted, actual in copies:
        by.setdefault(predicted, []).append(actual)
    ratio, offset = median(actual / predicted for predicted, actual in copies), 0.0
    if max(by) >= _SPREAD * min(by):
        per_us = np.array([1 / predicted for predicted in by])
        ratios = np.array([median(actual) for actual in by.values()]) * per_us
        weights = np.sqrt([len(actual) for actual in by.values()])
        start, slope = np.polyfit(per_us, ratios, 1, w=weights)
        if slope > 0:
            ratio, offset = float(slope), float(start)
    return LinkRatio(direction, _ppm(ratio), round(offset), len(copies))
