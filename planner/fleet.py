"""How many devices for these tasks, if any shard could run on any device at any time.

Tasks are cut as policy hydra cuts them, and each is a chain of shard ops: a forward or backward of
a shard for a microbatch, or its update, behind the copy of what it needs. Devices keep nothing, so
ops go wherever there is room (`chains`, `lines`). Copies back to the host and boundaries that move
between devices cost nothing here: what comes out is what shard-level execution could reach at
best, to hold a plan of whole segments (`build`) against.

Of tasks with many steps a part is scheduled, the same share of each, and its time scaled up.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import profiles
from planner.chains import Chain, Fleet
from planner.costs import Links, ShardCost, shape_of
from planner.errors import Infeasible
from planner.hydra import HydraStrategy, choose
from planner.lines import scheduled
from planner.problem import Kind
from profiles import console
from profiles.schema import Task
from profiles.units import show_us

_OPS = 100  # that are scheduled for each device, about
_LEAST_OPS = 5_000  # that are scheduled in any case
_SLOTS = 2  # that the cuts leave room for


@dataclass(frozen=True)
class Row:
    """With so many devices all steps of all tasks take `makespan_us`, and at least `least_us`;
    busy: the part of it in which a device computes, on average."""

    devices: int
    makespan_us: int
    least_us: int
    busy: float


def step_of(choice: HydraStrategy, links: Links) -> Chain:
    """The ops of one step."""
    ops: list[tuple[int, int]] = []
    shards, count = choice.shards, choice.costs.microbatches
    noted = choice.costs.noted

    def add(us: int, *sizes: int) -> None:
        ops.append((max(1, us), sum(links.prefetch_us(size) for size in sizes if size)))

    for microbatch in range(count):
        for shard in shards[:-1]:
            add(shard.forward_us, shard.param_bytes)
        for shard in shards[::-1]:
            updates = microbatch == count - 1 and shard.grad_bytes and not noted
            grad = shard.grad_bytes if microbatch else 0
            if updates:
                us = shard.backward_us + shard.update_device_us
                add(us, shard.param_bytes, shard.state_bytes, grad)
            else:
                add(shard.backward_us, shard.param_bytes, grad)
    for shard in shards if noted else ():
        if shard.grad_bytes:
            add(shard.norm_us + shard.update_device_us, *_all_bytes(shard))
    return Chain(tuple(us for us, _ in ops), tuple(us for _, us in ops))


def _all_bytes(shard: ShardCost) -> tuple[int, int, int]:
    return shard.param_bytes, shard.state_bytes, shard.grad_bytes


def fleet(kind: Kind, counts: Sequence[int], sharers: int = 1) -> list[Row]:
    """A row for every number of devices, `sharers` on each link. Infeasible when a task does not
    fit a device; ValueError where links would have unequal numbers of devices."""
    fleets = [Fleet(count, _SLOTS, sharers) for count in counts]
    links, of = Links.of(kind.unshared), {shape_of(task): task for task in kind.tasks}
    step = {shape: step_of(choice, links) for shape, choice in _choices(kind, of).items()}
    tasks = [(step[shape_of(task)], task.steps) for task in kind.tasks]
    ops = sum(len(one.compute_us) * steps for one, steps in tasks)
    most = max(_LEAST_OPS, _OPS * max(counts))
    some = [max(1, min(steps, steps * most // ops)) for _, steps in tasks]
    part = [
        Chain(one.compute_us * few, one.copy_us * few)
        for (one, _), few in zip(tasks, some, strict=True)
    ]
    total = sum(one.us * steps for one, steps in tasks)
    scale = total / sum(one.us for one in part)
    rows: dict[int, Row] = {}
    shortest: int | None = None  # on fewer devices, since some may stay idle
    for asked in sorted(fleets, key=lambda one: one.devices):
        least = _least_us(tasks, asked)
        found = max(least, round(scheduled(part, asked).makespan_us * scale))
        shortest = min(found, shortest or found)
        busy = total / (shortest * asked.devices)
        rows[asked.devices] = Row(asked.devices, shortest, least, busy)
    return [rows[count] for count in counts]


def _choices(kind: Kind, tasks: Mapping[object, Task]) -> dict[object, HydraStrategy]:
    """How each is cut; Infeasible for the one that needs most of those that do not fit."""
    made: dict[object, HydraStrategy] = {}
    short: list[Infeasible] = []
    for shape, task in tasks.items():
        try:
            made[shape] = choose(task, kind.device_bytes, kind.taken_bytes)
        except Infeasible as error:
            short.append(error)
    if short:
        raise max(short, key=lambda failure: failure.smallest)
    return made


def _least_us(tasks: Sequence[tuple[Chain, int]], asked: Fleet) -> int:
    """The bound of `chains.bound_us`, for all steps."""
    longest = max(one.copy_us[0] + one.us * steps for one, steps in tasks)
    compute = sum(one.us * steps for one, steps in tasks)
    copies = sum(one.copies_us[-1] * steps for one, steps in tasks)
    return max(longest, -(-compute // asked.devices), -(-copies // asked.links))


def add_command(names: Any) -> None:
    """The command `fleet`, to the parsers of a command line."""
    parser = names.add_parser(
        "fleet", help="how soon with how many devices, if any shard could run on any"
    )
    parser.add_argument("profile", metavar="PROFILE")
    counts, most = console.whole(1, 1 << 16), console.whole(1, 1 << 10)
    parser.add_argument(
        "--devices",
        type=lambda text: tuple(counts(part) for part in text.split(",")),
        required=True,
        metavar="COUNTS",
        help="numbers of devices, like 1,2,4,8",
    )
    msg = "memory of each device, like 24GiB (default: as profiled)"
    parser.add_argument("--device-memory", type=console.size, metavar="SIZE", help=msg)
    msg = "devices on each link to the host (default 1)"
    parser.add_argument("--sharers", type=most, default=1, metavar="N", help=msg)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=_fleet_sizes)


def _fleet_sizes(options: argparse.Namespace) -> int:
    """Print a row for every number of devices."""
    uneven = [count for count in options.devices if count % options.sharers]
    if uneven:
        raise profiles.FormatError(
            f"--sharers {options.sharers} does not divide {uneven[0]} devices; all links must "
            "have as many"
        )
    profile = profiles.load(options.profile)
    kind = Kind.of("", profile, max(options.devices), options.device_memory)
    rows = fleet(kind, options.devices, options.sharers)
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else table(rows))
    return 0


def table(rows: Sequence[Row]) -> str:
    """The rows for people."""
    cells = [("devices", "all steps", "at least", "gap", "busy")]
    for row in rows:
        gap = 1 - row.least_us / row.makespan_us
        times = show_us(row.makespan_us), show_us(row.least_us)
        cells.append((str(row.devices), *times, f"{gap:.1%}", f"{row.busy:.0%}"))
    return "\n".join(console.columns(cells, numbers=True))
