"""Samples of every length as they are trained: how long steps are, by packing and pipelines.

    python -m tests.benchmarks.lengths_runs [PROFILE] [--lengths NAME,...] [--run] [--json]

PROFILE is one of emulated devices and of one task whose samples have lengths. Without it a
byte-level transformer is profiled, on the files of Python's library as documents. Four devices
train it: as `auto` decides, padded, packed to a fixed length, and in each layout that is one of
equal pipelines. Lengths are those of the documents, or drawn (`support.drawn_lengths`). A case is a
memory of each device: as profiled, then the least that anything can be planned in and a quarter
more.

A row has the mean step as predicted, and in truth: each op lasts what the curves of the profile say
for the sequences that its microbatch has in that very step (`support.true_steps`), where the plan
says the mean of such steps. With --run the plans also run: the median of all steps but the first
two, each over its prediction. Ops of emulated devices last as long as planned. Exit code 1 if a
truth or a run is off by more than 5 %, or a truth is shorter than that of auto by more than 1 %.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from msgspec import structs
from torch import Tensor
from torch.optim import AdamW

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.true_steps import Truth

import plans
import profiles
from executor.workload import Task
from executor.workloads import documents
from planner import Infeasible, Options, build, read_problem
from plans import runlog
from plans.schema import Plan
from plans.timing import kinds_of, runs
from profiles import console, lengths
from profiles.codec import pretty
from profiles.units import show_bytes, show_us
from tests.benchmarks.drawn_lengths import DRAWN, drawn

DEVICES, OFF, LONGER = 4, 0.05, 0.01
WARM = 2  # steps of a run that do not count
SLOW = 8  # times slower than this machine the devices are
LONGEST, BATCH, STEPS = 2048, 16, 36
LENGTHS = ("documents", *DRAWN)  # the first are those of the task itself
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
    """A way to train samples of these lengths with so much memory. Times in µs of a step in the
    mean; run: a step over its prediction, as it ran."""

    lengths: str
    memory: int
    way: str
    pipelines: str
    kinds: int
    predicted_us: int
    true_us: int
    planned_s: float
    run: float | None = None

    @property
    def truth(self) -> float:
        """In truth over as predicted."""
        return self.true_us / self.predicted_us


def texts() -> list[Task]:
    """Four blocks that learn from texts, a task for each mixture of lengths."""
    return [_texts(name) for name in LENGTHS]


def one() -> list[Task]:
    """The task that is measured."""
    return [_texts(LENGTHS[0])]


def _texts(name: str) -> Task:
    whole = name == LENGTHS[0]
    sizes = documents.lengths(LONGEST) if whole else drawn(name, LONGEST).tolist()
    return Task(
        name=name,
        model=partial(documents.Model, width=64, blocks=4, heads=4, longest=LONGEST),
        data=partial(documents.samples, longest=LONGEST) if whole else partial(pieces, sizes),
        loss=documents.next_byte_loss,
        optimizer=partial(AdamW, lr=1e-3, fused=True),
        steps=STEPS,
        lengths=sizes,
        batch=BATCH,
    )


@cache
def whole_text() -> Tensor:
    """All documents, one behind the other."""
    many = range(len(documents.lengths(LONGEST)))
    return torch.cat([text for text, _ in documents.samples(many, longest=LONGEST)])


def pieces(sizes: Sequence[int], numbers: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Parts of the documents, and the same one byte later."""
    text, made = whole_text(), []
    for number in numbers:
        first = number * 739 % (len(text) - LONGEST)
        part = text[first : first + sizes[number] + 1]
        made.append((part[:-1], part[1:]))
    return made


def called(*words: object) -> None:
    """A command of the executor."""
    command = [sys.executable, "-m", "executor", *map(str, words)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def measured(folder: Path) -> Path:
    """The profile of the first task above."""
    path, ref = folder / "texts.json", f"{Path(__file__).resolve()}:one"
    rates = [word for kind in ("h2d", "d2h", "p2p") for word in (f"--{kind}", "400MB/s")]
    called("profile", ref, "--device-memory", "1GiB", *rates, "--slow-compute", SLOW, "-o", path)
    return path


def with_lengths(profile: Path, name: str, steps: int, folder: Path) -> Path:
    """The same profile for so many steps of a task with these lengths: its own ones, or drawn."""
    known, path = profiles.load(profile), folder / "profile.json"
    (task,) = known.tasks
    sizes = lengths.load(profile, [task])[task.name]
    if name in DRAWN:
        sizes = drawn(name, int(sizes.max())).astype(np.uint32)
        workload = structs.replace(task.workload, ref=f"{Path(__file__).resolve()}:texts")
        task = structs.replace(task, name=name, workload=workload, lengths=lengths.describe(sizes))
    lengths.save(path, task.name, sizes)
    made = structs.replace(known, tasks=(structs.replace(task, steps=steps, evaluation=None),))
    path.write_bytes(pretty(made))
    return path


def _own(profile: Path) -> bool:
    """True of a profile of the task above."""
    ref, _, _ = profiles.load(profile).tasks[0].workload.ref.rpartition(":")
    return Path(ref).resolve() == Path(__file__).resolve()


def memories(profile: Path, folder: Path) -> list[int]:
    """As profiled, and little."""
    whole = profiles.load(profile).machine.devices[0].usable_bytes
    problem = read_problem(str(profile), Options(devices=DEVICES, device_memory=1 << 16))
    try:
        build(problem, output=folder / "none.json")
    except Infeasible as error:
        return [whole, error.smallest * 5 // 4]
    return [whole]


def rows(profile: Path, name: str, folder: Path, *, run: bool) -> Iterator[Row]:
    """All ways with each memory, but those that have no plan."""
    for memory in memories(profile, folder):
        for way, asked in WAYS.items():
            problem = read_problem(
                str(profile), Options(devices=DEVICES, device_memory=memory, **asked)
            )
            output, begun = folder / "plan.json", time.process_time()
            try:
                plan = build(problem, output=output)
            except Infeasible:
                print(f"{name}, {show_bytes(memory)}, {way}: no plan", file=sys.stderr)
                continue
            spent = time.process_time() - begun
            plans.save(output, plan)
            told = next(one for one in plan.solver.alternatives if not one.why_not)
            steps = planned_steps(plan)
            yield Row(
                name,
                memory,
                way,
                f"{told.layout}, {told.order.partition(', ')[2]}",
                len(plan.programs[0].kinds) + 1,
                sum(steps) // len(steps),
                round(sum(true_steps(plan, output, profile)) / len(steps)),
                spent,
                ran(output, steps, folder) if run else None,
            )


def planned_steps(plan: Plan) -> list[int]:
    """How long after the one before it each step ends by the plan; the first, after enter."""
    found = list[int]()
    for segment in plan.segments:
        kinds = kinds_of(plan.program(segment.program))
        for kind, rounds in runs(segment):
            found += [kinds[kind].round_us, *[kinds[kind].period_us] * (rounds - 1)]
    return [us + more for us, more in zip(found, between_us(plan), strict=True)]


def between_us(plan: Plan) -> list[int]:
    """What lies before each step, as the segment before it leaves and its own enters."""
    found, leave = list[int](), 0
    for segment in plan.segments:
        program = plan.program(segment.program)
        found += [leave + program.enter_us if found else 0, *[0] * (segment.rounds - 1)]
        leave = program.leave_us
    return found


def true_steps(plan: Plan, path: Path, profile: Path) -> list[float]:
    """The same as planned_steps, in truth."""
    known = profiles.load(profile)
    took = Truth(
        plan, path, known, lengths.load(profile, known.tasks)[known.tasks[0].name]
    ).step_us()
    return [us + more for us, more in zip(took, between_us(plan), strict=True)]


def ran(output: Path, steps: Sequence[int], folder: Path) -> float:
    """A step of a run over what is planned for it: the median of all but the first ones."""
    called("run", output, "-o", folder / "run", "--overwrite")
    ends = [line.at_us for line in runlog.load(folder / "run").steps]
    took = [after - before for before, after in pairwise(ends)]
    return median(us / plan for us, plan in list(zip(took, steps[1:], strict=True))[WARM - 1 :])


def over_auto(found: Sequence[Row]) -> list[float]:
    """Each row's true step over that of auto of the same case."""
    auto = {(one.lengths, one.memory): one.true_us for one in found if one.way == "auto"}
    return [one.true_us / auto[one.lengths, one.memory] for one in found]


def table(found: Sequence[Row]) -> str:
    head = ("lengths", "memory", "way", "pipelines", "kinds", "predicted", "in truth", "ratio")
    lines = [(*head, "over auto", "ran", "planned in")]
    for one, over in zip(found, over_auto(found), strict=True):
        row = (one.lengths, show_bytes(one.memory), one.way, one.pipelines, f"{one.kinds}")
        times = (show_us(one.predicted_us), show_us(one.true_us), f"{one.truth:.3f}", f"{over:.2f}")
        lines.append((*row, *times, f"{one.run:.3f}" if one.run else "", f"{one.planned_s:.1f} s"))
    return "\n".join(console.columns(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", nargs="?", type=Path, help="of one task with lengths")
    parser.add_argument("--lengths", default=",".join(LENGTHS), help="some of them, all by default")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each row, above {WARM + 1}")
    parser.add_argument("--run", action="store_true", help="run the plans, too")
    parser.add_argument("--json", action="store_true", help="for scripts")
    options = parser.parse_args()
    names = options.lengths.split(",")
    if unknown := [name for name in names if name not in LENGTHS]:
        parser.error(f"--lengths {unknown[0]}: there are {', '.join(LENGTHS)}")
    if options.run and options.profile and not _own(options.profile) and names != [LENGTHS[0]]:
        parser.error(f"this PROFILE runs with its own lengths only; give --lengths {LENGTHS[0]}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile, found = options.profile or measured(folder), list[Row]()
        for name in names:
            own = with_lengths(profile, name, max(WARM + 2, options.steps), folder)
            found += rows(own, name, folder, run=options.run)
    every = over_auto(found)
    if options.json:
        told = [vars(one) | {"ratio": one.truth} for one in found]
        print(json.dumps([one | {"over": over} for one, over in zip(told, every, strict=True)]))
    else:
        print(table(found))
    off = any(abs(us - 1) > OFF for one in found for us in (one.truth, one.run or 1))
    sys.exit(off or min(every) < 1 - LONGER)


if __name__ == "__main__":
    main()
