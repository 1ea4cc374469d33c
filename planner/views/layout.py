"""The layout of a program on several devices: shards in stages, and the replicas of each.

layout 2x2: s0-s3 on 0, 1; s4-s7 on 2, 3
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from planner.views.words import ranges
from plans.ops import PASSES
from plans.schema import Program
from plans.timing import rank, round_compute_us


class Stage(NamedTuple):
    """Shards that the same devices run, and how many microbatches each of them takes."""

    devices: tuple[int, ...]
    shards: tuple[int, ...]
    microbatches: tuple[int, ...]


def stages(program: Program, task: str) -> list[Stage]:
    """The stages of a task in a program, in the order of their first shards."""
    counted = "F" if program.evaluates else "BI"  # one for each microbatch
    runs: dict[int, Counter[int]] = {}
    for op in program.round:
        name = op.name
        if name.task == task and name.item == "s" and name.kind in PASSES:
            runs.setdefault(name.number, Counter())[rank(op.stream)[0]] += name.kind in counted
    found: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for shard, counts in sorted(runs.items()):
        found.setdefault(tuple(sorted(counts.items())), []).append(shard)
    return [
        Stage(tuple(d for d, _ in where), tuple(shards), tuple(n for _, n in where))
        for where, shards in found.items()
    ]


def layout(found: Sequence[Stage]) -> str:
    """Depth x replicas, `2x2`; the replicas of every stage where they differ, `3,1`; else "mixed":
    some device is in several stages."""
    places = {stage.devices for stage in found}
    sizes = [len(devices) for devices in dict.fromkeys(stage.devices for stage in found)]
    if len(set().union(*places)) < sum(sizes):
        return "mixed"
    return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else ",".join(map(str, sizes))


def layout_words(program: Program, task: str, devices: Sequence[int]) -> str:
    """The layout of a task and its stages, with these numbers for the program's devices."""
    found = stages(program, task)
    told = []
    for stage in found:
        where = ", ".join(str(devices[device]) for device in stage.devices)
        uneven = len(set(stage.microbatches)) > 1
        shares = f" ({', '.join(map(str, stage.microbatches))} microbatches)" * uneven
        told.append(f"{ranges(stage.shards)} on {where}{shares}")
    return f"layout {layout(found)}: {'; '.join(told)}"


def shards_on(found: Iterable[Stage]) -> Mapping[int, tuple[int, ...]]:
    """The shards of each device, ascending."""
    on: dict[int, list[int]] = {}
    for stage in found:
        for device in stage.devices:
            on.setdefault(device, []).extend(stage.shards)
    return {device: tuple(sorted(shards)) for device, shards in on.items()}


def bubble(program: Program) -> float:
    """The share of a round in which its devices, on average, do not compute."""
    return 1 - sum(round_compute_us(program)) / max(program.devices * program.period_us, 1)
