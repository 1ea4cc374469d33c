"""Pipelines as they run, over what was predicted: one task on four emulated devices.

    python -m tests.benchmarks.pipeline_times [PROFILE] [--steps 10] [--processes 2] [--json]

PROFILE is one of emulated devices that send to each other (`python -m executor profile ... --p2p
RATE`), made on this machine; its first task is trained in each layout. Without it a byte-level GPT
is profiled first. A row is a layout and an order: the step as predicted and as it ran (the mean of
all but the first two), their ratio, how much the median op is off, and processor seconds. Exit code
1 if a step is off by more than 5 %. With processes, torchrun starts as many, also for the profile;
processor seconds are then a mean of all rows.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from msgspec import structs
from torch.optim import AdamW

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import in_turn

import plans
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


def together(processes: int, folder: Path, *calls: Sequence[object]) -> None:
    """Calls of the executor, one after another in so many processes of torchrun."""
    lines = [json.dumps([str(part) for part in call]) for call in calls]
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    subprocess.run([*start, in_turn.__file__, *lines], cwd=folder, check=True, stdout=sys.stderr)


def measured(processes: int) -> Profile:
    """The GPT, on devices as slow as it takes for this machine to keep up with all of them."""
    ref, slow = f"{Path(__file__).resolve()}:gpt", profiler.slowdown(DEVICES)
    if processes == 1:
        link = Emulation(RATE, RATE, 20, compute_slowdown=slow, p2p_bytes_per_s=RATE)
        asked = profiler.Options(device_bytes=MEMORY, emulation=link, devices=DEVICES)
        return profiler.profile(ref, asked)
    rates = [part for kind in ("h2d", "d2h", "p2p") for part in (f"--{kind}", f"{RATE}B/s")]
    call = ["profile", ref, "--device-memory", f"{MEMORY}B", "--devices", DEVICES, *rates]
    with tempfile.TemporaryDirectory() as folder:
        together(processes, Path(folder), [*call, "--slow-compute", slow, "-o", "p.json"])
        return profiles.load(f"{folder}/p.json")


def plan_of(profile: Profile, layout: str, order: OrderName, steps: int) -> Plan:
    """The plan that trains the profile's first task in this layout."""
    first = structs.replace(profile.tasks[0], steps=steps, evaluation=None)
    alone = structs.replace(profile, tasks=(first,))
    problem = Problem.of(alone, devices=DEVICES, device_bytes=None, host_bytes=None)
    asked = replace(problem, layout=parse_layout(layout), order=order)
    return build(asked, profile_sha256="0" * 64)


def rows(profile: Profile, steps: int, processes: int) -> Iterator[Row]:
    """A row for each layout that the task has layers enough for."""
    tasks, _ = load(profile.tasks[0].workload.ref)
    task = next(one for one in tasks if one.name == profile.tasks[0].name)
    made = {f"{one}, {order}": plan_of(profile, one, order, steps) for one, order in LAYOUTS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, plan in enumerate(made.values()):
            plans.save(folder / f"{number}.json", plan)
        if processes > 1:
            begun = _processor_s()
            calls = [["run", f"{n}.json", "-o", f"{n}"] for n in range(len(made))]
            together(processes, folder, *calls)
            spent = (_processor_s() - begun) / len(made)
        for number, (layout, plan) in enumerate(made.items()):
            if processes == 1:
                begun = _processor_s()
                run(plan, [task], Options(folder=folder / f"{number}"))
                spent = _processor_s() - begun
            yield row(layout, plan, runlog.load(folder / f"{number}"), spent)


def row(name: str, plan: Plan, log: runlog.RunLog, processor_s: float) -> Row:
    """The layout's plan, and what its run was like."""
    ends = [line.at_us for line in log.steps]
    ops = [one for one in happened(plan, log) if one.round > 1]
    errors = [abs(one.us - one.predicted_us) / max(1, one.predicted_us) for one in ops]
    actual = (ends[-1] - ends[1]) // (len(ends) - 2)
    return Row(name, plan.programs[0].period_us, actual, median(errors), processor_s)


def _processor_s() -> float:
    """Seconds of this process and of those that it has started."""
    return sum(os.times()[:4])


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
    parser.add_argument("--processes", type=int, default=1, help="that divide four devices")
    parser.add_argument("--json", action="store_true", help="for scripts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    profile = profiles.load(options.profile) if options.profile else measured(options.processes)
    if "p2p" not in {link.kind for link in profile.machine.devices[0].links}:
        parser.error(f"{options.profile}: has no p2p link; profile emulated devices with --p2p")
    found = list(rows(profile, max(3, options.steps), options.processes))
    if options.json:
        print(json.dumps([one._asdict() | {"ratio": one.ratio} for one in found]))
    else:
        print(f"times are {profile.emulated}\n{table(found)}")
    sys.exit(any(abs(one.ratio - 1) > OFF for one in found))


if __name__ == "__main__":
    main()
