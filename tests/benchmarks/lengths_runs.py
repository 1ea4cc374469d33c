"""Samples of every length as they are trained: how long steps are, by packing and pipelines.

    python -m tests.benchmarks.lengths_runs [PROFILE] [--steps 12] [--json]

PROFILE is one of emulated devices and of one task whose samples have lengths, made on this machine.
Without it a byte-level transformer is profiled, on the files of Python's library as documents. Four
devices train it: as `auto` decides, padded, packed to a fixed length, and in each layout that is
one of equal pipelines. A case is a memory of each device: as profiled, then the least that anything
can be planned in and a quarter more. A row has the step as predicted and as it ran (the mean of all
but the first two), their ratio, the step over that of auto, and processor seconds. Exit code 1 if a
step is off by more than 5 %, or any is shorter than that of auto by more than 2 %.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs
from torch.optim import AdamW

import plans
import profiles
from executor.workload import Task
from executor.workloads import documents
from planner import Infeasible, build, read_problem
from plans import runlog
from plans.schema import Plan
from plans.timing import duration_us, part, runs
from profiles import console, lengths
from profiles.codec import pretty
from profiles.units import show_bytes, show_us

DEVICES, OFF, LONGER = 4, 0.05, 0.02
WARM = 2  # steps that do not count
SLOW = 8  # times slower than this machine the devices are
LONGEST, BATCH = 2048, 16
WAYS: Mapping[str, Mapping[str, Any]] = {
    "auto": {},
    "pad": {"packing": "pad"},
    "fixed": {"packing": "fixed"},
    "layout 4x1": {"layout": "4x1"},
    "layout 2x2": {"layout": "2x2"},
    "layout 1x4": {"layout": "1x4"},
}


@dataclass(frozen=True)
class Row:
    """A way to train it with so much memory; times in µs."""

    memory: int
    way: str
    pipelines: str
    predicted_us: int
    actual_us: int
    processor_s: float

    @property
    def ratio(self) -> float:
        return self.actual_us / self.predicted_us


def texts() -> list[Task]:
    """Four blocks that learn from a part of each document."""
    return [
        Task(
            name="texts",
            model=partial(documents.Model, width=64, blocks=4, heads=4, longest=LONGEST),
            data=partial(documents.samples, longest=LONGEST),
            loss=documents.next_byte_loss,
            optimizer=partial(AdamW, lr=1e-3, fused=True),
            steps=12,
            lengths=documents.lengths(LONGEST),
            batch=BATCH,
        )
    ]


def called(*words: object) -> None:
    """A command of the executor."""
    command = [sys.executable, "-m", "executor", *map(str, words)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def measured(folder: Path) -> Path:
    """The profile of the task above."""
    path, ref = folder / "texts.json", f"{Path(__file__).resolve()}:texts"
    rates = [word for kind in ("h2d", "d2h", "p2p") for word in (f"--{kind}", "400MB/s")]
    called("profile", ref, "--device-memory", "1GiB", *rates, "--slow-compute", SLOW, "-o", path)
    return path


def shortened(profile: Path, steps: int, folder: Path) -> Path:
    """The same profile for so many steps."""
    known, path = profiles.load(profile), folder / "short.json"
    (task,) = known.tasks
    lengths.save(path, task.name, lengths.load(profile, task))
    made = structs.replace(known, tasks=(structs.replace(task, steps=steps, evaluation=None),))
    path.write_bytes(pretty(made))
    return path


def memories(profile: Path, folder: Path) -> list[int]:
    """As profiled, and little."""
    whole = profiles.load(profile).machine.devices[0].usable_bytes
    problem = read_problem(str(profile), devices=DEVICES, device_memory=1 << 16)
    try:
        build(problem, output=folder / "none.json")
    except Infeasible as error:
        return [whole, error.smallest * 5 // 4]
    return [whole]


def rows(profile: Path, folder: Path) -> Iterator[Row]:
    """All ways with each memory, but those that have no plan."""
    for memory in memories(profile, folder):
        for way, asked in WAYS.items():
            problem = read_problem(str(profile), devices=DEVICES, device_memory=memory, **asked)
            output, log = folder / "plan.json", folder / "run.jsonl"
            try:
                plan = build(problem, output=output)
            except Infeasible:
                print(f"{show_bytes(memory)}, {way}: no plan", file=sys.stderr)
                continue
            plans.save(output, plan)
            begun = _processor_s()
            called("run", output, "-o", log, "--overwrite")
            spent = _processor_s() - begun
            ends = [line.at_us for line in runlog.load(log).steps]
            actual = (ends[-1] - ends[WARM - 1]) // (len(ends) - WARM)
            told = next(one for one in plan.solver.alternatives if not one.why_not)
            pipelines = f"{told.layout}, {told.order.partition(', ')[2]}"
            yield Row(memory, way, pipelines, predicted_us(plan), actual, spent)


def predicted_us(plan: Plan) -> int:
    """The mean of all steps but the first ones."""
    (program,), (segment,) = plan.programs, plan.segments
    rounds = segment.rounds - WARM
    kinds = part(runs(segment), WARM, rounds)
    whole = duration_us(program, rounds, kinds)
    return (whole - program.enter_us - program.leave_us) // rounds


def _processor_s() -> float:
    """Seconds of the processes that were started and have ended."""
    return sum(os.times()[2:4])


def over_auto(found: Sequence[Row]) -> list[float]:
    """Each row's step over that of auto with as much memory."""
    auto = {one.memory: one.actual_us for one in found if one.way == "auto"}
    return [one.actual_us / auto[one.memory] for one in found]


def table(found: Sequence[Row]) -> str:
    head = ("memory", "way", "pipelines", "predicted step", "actual", "ratio", "over auto", "cpu")
    lines = [
        (
            show_bytes(one.memory),
            one.way,
            one.pipelines,
            show_us(one.predicted_us),
            show_us(one.actual_us),
            f"{one.ratio:.3f}",
            f"{over:.2f}",
            f"{one.processor_s:.1f} s",
        )
        for one, over in zip(found, over_auto(found), strict=True)
    ]
    return "\n".join(console.columns([head, *lines]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", nargs="?", type=Path, help="of one task with lengths")
    parser.add_argument("--steps", type=int, default=12, help="of each row, 4 at least")
    parser.add_argument("--json", action="store_true", help="for scripts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile = options.profile or measured(folder)
        short = shortened(profile, max(WARM + 2, options.steps), folder)
        found = list(rows(short, folder))
    every = over_auto(found)
    if options.json:
        told = [vars(one) | {"ratio": one.ratio} for one in found]
        print(json.dumps([one | {"over": over} for one, over in zip(told, every, strict=True)]))
    else:
        print(table(found))
    off = any(abs(one.ratio - 1) > OFF for one in found)
    sys.exit(off or min(every) < 1 - LONGER)


if __name__ == "__main__":
    main()
