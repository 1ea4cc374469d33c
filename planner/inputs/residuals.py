"""From a run to corrections: actual against predicted durations, by time and layer.

Ops that ran under the memory meter (compute in a program's first round) are slower than the rest
and left out. An op covers a shard, so its ratio counts for each of the shard's layers; a layer
takes the median over all rounds, microbatches and segments in which an op covered it.
"""

from collections.abc import Sequence
from statistics import median
from typing import get_args

import numpy as np

from planner.inputs.corrections import MOST, PPM, Corrections, Direction, LinkRatio, What
from plans.ops import Lane, OpName
from plans.runlog import RunLog
from plans.schema import Plan, Shard
from plans.timing import OpBar
from plans.trace import happened
from profiles.errors import FormatError

_DIRECTIONS: dict[str, Direction] = {"h2d": "h2d", "d2h": "d2h", "p2p": "p2p"}
_SPREAD = 2  # copies whose predicted times differ by this factor tell latency and rate apart


def residuals(plan: Plan, log: RunLog, *, plan_sha256: str, log_sha256: str) -> Corrections:
    """Corrections from the log of a run of `plan`. FormatError when it shows nothing."""
    times: dict[tuple[str, What, int], list[float]] = {}  # ratios of a layer
    copies: dict[Direction, list[tuple[int, int]]] = {}
    shards = {task.name: task.shards for task in plan.tasks}
    spaces = {p.name: {buffer.name: buffer.space for buffer in p.buffers} for p in plan.programs}
    for one in happened(plan, log):
        name, program = one.op.name, plan.program(plan.segments[one.segment].program)
        if one.metered or not one.predicted_us or name.item == "batch":
            continue  # a batch's copy also waits for the user's data
        if one.lane in _DIRECTIONS:
            way = _direction(plan, one, spaces[program.name])
            copies.setdefault(way, []).append((one.predicted_us, one.us))
        # Layers do less in eval mode, and no loss was measured by itself.
        elif name.kind in "FBU" and not program.evaluates:
            shard = shards[name.task][name.number]
            what = _timed(name, shard, one.lane)
            for layer in range(shard.first_layer, shard.end_layer):
                ratios = times.setdefault((name.task, what, layer), [])
                ratios.append(one.us / one.predicted_us)
    if not times and not copies:
        raise FormatError(
            "run log: it shows no op but those of the first round, which the memory meter slows "
            "down; run at least 2 steps"
        )
    found: dict[str, dict[What, dict[int, int]]] = {}
    for (task, what, layer), ratios in sorted(times.items()):
        found.setdefault(task, {}).setdefault(what, {})[layer] = _ppm(median(ratios))
    return Corrections(
        inputs={**plan.inputs, "plan": plan_sha256, "log": log_sha256},
        emulation=plan.devices[0].emulation,
        tasks=found,
        links={way: _link_ratio(copies[way]) for way in get_args(Direction) if way in copies},
    )


def _direction(plan: Plan, one: OpBar, spaces: dict[str, str]) -> Direction:
    """The link that a copy shows: `cast` of a prefetch from masters, `net` between nodes."""
    if one.kind == "P" and "state" in one.op.reads and "param" in one.op.writes:
        return "cast"
    if one.lane is Lane.P2P:
        (buffer,), devices = one.op.writes.values(), plan.segments[one.segment].devices
        ends = one.op.queue.device, int(spaces[buffer])
        if len({plan.devices[devices[local]].node for local in ends}) > 1:
            return "net"
    return _DIRECTIONS[one.lane]


def _timed(name: OpName, shard: Shard, lane: Lane) -> What:
    """The time of the profile that an F, B or U of this shard showed.

    The last shard's activations are always recomputed: its B runs forward and backward at once.
    """
    again = shard.keeps(name.index) == "recompute"
    if name.kind == "F":
        return "forward" if again else "recompute"
    if name.kind == "B":
        return "recompute_backward" if again else "backward"
    return "update_device" if lane is Lane.COMPUTE else "update_host"


def _ppm(ratio: float) -> int:
    return min(max(round(ratio * PPM), PPM // MOST), PPM * MOST)


def _link_ratio(copies: Sequence[tuple[int, int]]) -> LinkRatio:
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
    return LinkRatio(_ppm(ratio), round(offset), len(copies))
