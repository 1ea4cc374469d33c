"""Pipelines as they run, over what was predicted: one task on four emulated devices.

    python -m tests.benchmarks.pipeline_times [PROFILE] [--steps 10] [--json]

PROFILE is one of emulated devices that send to each other (`python -m executor profile ... --p2p
RATE`), made on this machine; its first task is trained in each layout. Without it a byte-level GPT
is profiled first. A row is a layout and an order: the step as predicted and as it ran (the mean of
all but the first two), their ratio, how much the median op is off, and processor seconds. Exit code
1 if a step is off by more than 5 %.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from msgspec import structs
from torch.optim import AdamW

import profiles
from executor import run
from executor.driver import Options
from executor.profiling import profiler
from executor.workload import Task, load
from executor.workloads import bytes_lm
from planner import Problem, build
from planner.inputs import OrderName, parse_layout
from plans import runlog
from plans.schema import Plan
from plans.trace import happened
from profiles import console
from profiles.schema import Emulation, Profile
from profiles.units import show_us

DEVICES, OFF = 4, 0.05
MEMORY = 1 << 30
RATE = 400_000_000


LAYOUTS: tuple[tuple[str, OrderName], ...] = (
    ("4x1", "1f1b"),
    ("4x1", "interleaved"),
    ("4x1", "zero-bubble"),
    ("2x2", "auto"),
    ("3,1", "auto"),
)


class Row(NamedTuple):
    """A layout; times in µs."""

    layout: str
    predicted_us: int
    actual_us: int
    median_op_error: float
    processor_s: float

    @property
    def ratio(self) -> float:
        return self.actual_us / self.predicted_us


def gpt() -> list[Task]:
    """Six blocks with dropout."""
    return [
        Task(
            name="gpt",
            model=partial(bytes_lm.gpt, 128, 6, 4, 64, 0.1),
            data=partial(bytes_lm.windows, seed=1, batch=16, length=64),
            loss=bytes_lm.next_byte_loss,
            optimizer=partial(AdamW, lr=3e-4, fused=True),
            steps=10,
        )
    ]


def measured() -> Profile:
    """The GPT, on devices as slow as it takes for this machine to keep up with all of them."""
    slow = profiler.slowdown(DEVICES)
    link = Emulation(RATE, RATE, 20, compute_slowdown=slow, p2p_bytes_per_s=RATE)
    asked = profiler.Options(device_bytes=MEMORY, emulation=link, devices=DEVICES)
    return profiler.profile(f"{Path(__file__).resolve()}:gpt", asked)


def plan_of(profile: Profile, layout: str, order: OrderName, steps: int) -> Plan:
    """The plan that trains the profile's first task in this layout."""
    first = structs.replace(profile.tasks[0], steps=steps, evaluation=None)
    alone = structs.replace(profile, tasks=(first,))
    problem = Problem.of(alone, devices=DEVICES, device_bytes=None, host_bytes=None)
    asked = replace(problem, layout=parse_layout(layout), order=order)
    return build(asked, profile_sha256="0" * 64)


def row(name: str, plan: Plan, task: Task) -> Row:
    """The layout's plan, replayed."""
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.jsonl"
        run(plan, [task], Options(log=log))
        read = runlog.load(log)
    ends = [line.at_us for line in read.steps]
    ops = [one for one in happened(plan, read) if one.round > 1]
    errors = [abs(one.us - one.predicted_us) / max(1, one.predicted_us) for one in ops]
    actual = (ends[-1] - ends[1]) // (len(ends) - 2)
    spent = time.process_time() - begun
    return Row(name, plan.programs[0].period_us, actual, median(errors), spent)


def rows(profile: Profile, steps: int) -> Iterator[Row]:
    """A row for each layout that the task has layers enough for."""
    tasks, _ = load(profile.tasks[0].workload.ref)
    task = next(one for one in tasks if one.name == profile.tasks[0].name)
    for layout, order in LAYOUTS:
        yield row(f"{layout}, {order}", plan_of(profile, layout, order, steps), task)


def table(found: Sequence[Row]) -> str:
    head = ("layout", "predicted step", "actual", "ratio", "median op off by", "processor")
    lines = [
        (
            one.layout,
            show_us(one.predicted_us),
            show_us(one.actual_us),
            f"{one.ratio:.3f}",
            f"{one.median_op_error:.1%}",
            f"{one.processor_s:.1f} s",
        )
        for one in found
    ]
    return "\n".join(console.columns([head, *lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", nargs="?", type=Path, help="of emulated devices with p2p")
    parser.add_argument("--steps", type=int, default=10, help="of each layout, 3 at least")
    parser.add_argument("--json", action="store_true", help="for scripts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profile = profiles.load(options.profile) if options.profile else measured()
    if "p2p" not in {link.kind for link in profile.machine.devices[0].links}:
        parser.error(f"{options.profile}: has no p2p link; profile emulated devices with --p2p")
    found = list(rows(profile, max(3, options.steps)))
    if options.json:
        print(json.dumps([one._asdict() | {"ratio": one.ratio} for one in found]))
    else:
        print(f"times are {profile.emulated}\n{table(found)}")
    sys.exit(any(abs(one.ratio - 1) > OFF for one in found))


if __name__ == "__main__":
    main()
