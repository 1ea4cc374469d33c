"""Many tasks on many devices: how near the plan is to the best schedule of its programs.

    python -m tests.benchmarks.many_tasks --jobs 2
    python -m tests.benchmarks.many_tasks --only w1 --only scale

Run from the root of the repository. The instances are estimated, not measured: V100s of 16 GB,
fp32, plain SGD.

    w1     12 GPT-2 XL of context 512, batch 16 and 8, six learning rates each, an epoch; 8 GPUs
    w2     12 encoders of 144 layers, batch 8, 16 and 32, 4 epochs of 2.4 M tokens; 8 GPUs
    w3     12 vision transformers of 24 to 110 layers, batch 128 and 256, 5 epochs; 8 GPUs
    w4     one GPT of 250 layers as wide as GPT-2 XL, batch 1; 1 GPU
    scale  2,000 tasks of four small models on 1,000 GPUs

`--gangs PERCENT` says instead what tasks on several devices at once could gain if k devices took a
k-th of the time and so many per cent more; nothing is laid out. `--curve` prints how build time and
memory grow with tasks (of the four small models, one to three days each) and GPUs, each build in a
process of its own.

Exit code 1 where a makespan is more than 2 % above the bound of the programs.
"""

import argparse
import multiprocessing
import random
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from msgspec import structs

from planner.bounds.task import task_bounds
from planner.builder import build
from planner.estimate.models import MODELS, Model
from planner.estimate.profile import Spec, estimate
from planner.exploring import candidate_widths
from planner.inputs.problem import Effort, Problem
from planner.search.searches import Searches, baselines
from planner.search.shapes import shapes_of
from planner.shards.costs import TaskCosts
from planner.timetable.assign_jobs import jobs_of, timetable
from planner.timetable.choice import choose_programs, schedule_bound_us
from planner.timetable.jobs import makespan
from planner.timetable.list_schedule import longest_remaining
from plans.prediction import Prediction
from plans.schema import Plan
from profiles import console
from profiles.codec import pretty
from profiles.schema import Profile, Task
from profiles.units import LARGEST, show_us
from tests.support.gangs import wider

GPU = "v100-16"
TOKENS, EPOCH_IMAGES = 2_400_000, 50_000
DEPTHS = (24, 32, 38, 54, 80, 110)
DAY_US = 86_400_000_000
GAP_PERCENT = 2
CURVE = (
    *((1, tasks) for tasks in (1, 12, 100)),
    *((8, tasks) for tasks in (1, 12, 100, 2_000)),
    *((64, tasks) for tasks in (12, 100, 2_000)),
    *((1_000, tasks) for tasks in (100, 2_000)),
)  # GPUs and tasks
SCALE_MODELS = ("gpt2", "gpt2-medium", "bert-base", "vit-b")

_XL = MODELS["gpt2-xl"]
_ENCODER = Model("encoder-144", "bert", 144, 1024, 16, 1024, 128, vocabulary=28783, positions=128)
_VITS = tuple(
    replace(MODELS["vit-l" if depth == 24 else "vit-h"], name=f"vit-{depth}", blocks=depth)
    for depth in DEPTHS
)
_GIANT = replace(_XL, name="gpt-250", blocks=250)
_MODELS = MODELS | {model.name: model for model in (_ENCODER, _GIANT, *_VITS)}


@dataclass(frozen=True)
class Entry:
    """Some tasks of one shape: `count` of them, which differ in their learning rates.

    None: the model's own sequence, and all powers of two as microbatches.
    """

    model: str
    batch: int
    steps: int
    count: int
    sequence: int | None = None
    microbatches: tuple[int, ...] | None = None


WORKLOADS: dict[str, tuple[int, tuple[Entry, ...]]] = {
    "w1": (8, (Entry("gpt2-xl", 16, 299, 6, 512), Entry("gpt2-xl", 8, 598, 6, 512))),
    "w2": (
        8,
        tuple(Entry("encoder-144", b, 4 * TOKENS // (128 * b), 4) for b in (8, 16, 32)),
    ),
    "w3": (
        8,
        tuple(
            Entry(f"vit-{depth}", b, 5 * -(-EPOCH_IMAGES // b), 1, microbatches=(4, 16, 64))
            for depth in DEPTHS
            for b in (128, 256)
        ),
    ),
    "w4": (1, (Entry("gpt-250", 1, 1000, 1, 1024),)),
}


def workload(name: str) -> Problem:
    """One of the workloads w1 to w4."""
    devices, entries = WORKLOADS[name]
    return _problem(devices, entries)


def scale(devices: int = 1_000, tasks: int = 2_000, seed: int = 0) -> Problem:
    """Tasks of few shapes that compute for one to three days each."""
    asked = _problem(devices, [Entry(model, 8, 1, 1) for model in SCALE_MODELS])
    rng = random.Random(seed)
    step_us = [TaskCosts(task, task.batch).least_us for task in asked.tasks]
    many = []
    for index in range(tasks):
        shape = index % len(asked.tasks)
        steps = rng.randint(DAY_US, 3 * DAY_US) // step_us[shape]
        many.append(structs.replace(asked.tasks[shape], name=f"t{index}", steps=steps))
    return asked.alike(tasks=tuple(many))


def _problem(devices: int, entries: Iterable[Entry]) -> Problem:
    made = [(entry, _profile(entry)) for entry in entries]
    tasks = tuple(task for entry, profile in made for task in _tasks(entry, profile.tasks[0]))
    profile = structs.replace(made[0][1], tasks=tasks)
    return Problem.of(profile, devices=devices, device_bytes=None, host_bytes=LARGEST)


def _profile(entry: Entry) -> Profile:
    return estimate(
        Spec(
            entry.model,
            GPU,
            entry.batch,
            sequence=entry.sequence,
            microbatches=entry.microbatches,
            optimizer="sgd",
            dtype="fp32",
            steps=entry.steps,
        ),
        _MODELS,
    )


def _tasks(entry: Entry, task: Task) -> Iterator[Task]:
    for index in range(entry.count):
        yield structs.replace(task, name=f"{task.name}-b{entry.batch}-lr{index}")


@dataclass(frozen=True)
class Row:
    """What came out; hydra_us: the baseline's makespan, None where it has too many turns."""

    name: str
    plan: Plan
    hydra_us: int | None
    seconds: float


def solve(name: str, problem: Problem, seconds: float, jobs: int) -> Row:
    """Plan it, and see what the baseline would take."""
    begun = time.perf_counter()
    plan = build(problem, profile_sha256="0" * 64, seconds=seconds, jobs=jobs)
    spent = time.perf_counter() - begun
    return Row(name, plan, baseline_us(problem) if name in WORKLOADS else None, spent)


def baseline_us(problem: Problem) -> int:
    """The makespan of policy hydra, whose plans have a segment for nearly every minibatch."""
    jobs = jobs_of(problem, [own[0] for own in baselines(problem).ways])
    return makespan(longest_remaining(jobs, problem.kind_of))


def near_bound(told: Prediction) -> bool:
    """True if a makespan is near the bound of its programs."""
    return told.makespan_us * (100 - GAP_PERCENT) <= 100 * told.configuration_us


def line(row: Row) -> str:
    """A row for people."""
    told = row.plan.prediction
    hydra = f"{row.hydra_us / told.makespan_us:.2f}" if row.hydra_us else "-"
    segments, size = len(row.plan.segments), len(pretty(row.plan)) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    status = row.plan.solver.status
    gap = 1 - told.configuration_us / told.makespan_us
    return (
        f"{row.name:6} makespan {show_us(told.makespan_us):>10}  of these programs at least "
        f"{show_us(told.configuration_us):>10}, gap {gap:.3%}  {told.lower_bound_name} gap "
        f"{told.gap_ppm / 1e6:.1%}  hydra/ours {hydra}  "
        f"segments {segments}  plan {size:.1f} MB  peak {peak:.2f} GB  "
        f"built in {row.seconds:.1f} s ({status})"
    )


def gangs(name: str, problem: Problem, percent: int, seconds: float, jobs: int) -> tuple[str, bool]:
    """What such programs on several devices would gain, and whether that is near their bound."""
    effort = Effort(time.monotonic() + seconds, 0)
    effort = replace(effort, limits=effort.limits.among(len(shapes_of(problem))))
    asked = candidate_widths(problem, task_bounds(problem, effort, jobs), effort)
    searches = Searches(problem, jobs=jobs)
    searches.run([task.name for task in problem.tasks], (), effort)
    ways = [
        [*own, *(wider(own[0], w.devices, percent) for w in asked if w.task == task.name)]
        for task, own in zip(problem.tasks, searches.ways, strict=True)
    ]
    begun = time.process_time()
    chosen = choose_programs(problem, ways, effort)
    floor = schedule_bound_us(problem, [[one] for one in chosen], effort)
    end = max(one.end_us for one in timetable(problem, chosen, floor, "gantry", effort))
    spent, bound = time.process_time() - begun, schedule_bound_us(problem, ways, effort)
    wide = [
        (task.name, one.program.devices) for task, one in zip(problem.tasks, chosen, strict=True)
    ]
    on = ", ".join(f"{task} on {count}" for task, count in wide if count > 1) or "none"
    told = (
        f"{name:6} makespan {show_us(end):>10}  of these programs at least {show_us(bound):>10}, "
        f"gap {1 - bound / end:.3%}  hydra/ours {baseline_us(problem) / end:.2f}  "
        f"searched {len(asked)}  on several devices: {on}  placed in {spent:.1f} s"
    )
    return told, end * (100 - GAP_PERCENT) <= 100 * bound


def curve(jobs: int, seconds: float) -> Iterator[str]:
    """A table: how long the build takes, and the most memory that it takes."""
    yield "| GPUs | tasks | gap | segments | plan MB | s | of processor time | peak GB |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for devices, tasks in CURVE:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield pool.submit(_point, devices, tasks, jobs, seconds).result()


def _point(devices: int, tasks: int, jobs: int, seconds: float) -> str:
    """A row of the curve."""
    problem, begun = scale(devices, tasks), _processor_seconds()
    row = solve("curve", problem, seconds, jobs)
    used = _processor_seconds() - begun
    told = row.plan.prediction
    gap = 1 - told.configuration_us / told.makespan_us
    size = len(pretty(row.plan)) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    cut = "" if row.plan.solver.status == "complete" else f" ({row.plan.solver.status})"
    return (
        f"| {devices} | {tasks} | {gap:.3%} | {len(row.plan.segments)} | {size:.1f} | "
        f"{row.seconds:.1f}{cut} | {used:.1f} | {peak:.2f} |"
    )


def _processor_seconds() -> float:
    """Of this process and those it has waited for."""
    spent = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in spent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen instances."""
    names = (*WORKLOADS, "scale")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", action="append", choices=names, help="repeat it for several")
    parser.add_argument("--jobs", type=console.whole(1, 64), default=1)
    parser.add_argument("--time-limit", type=console.seconds, default=60.0, metavar="SECONDS")
    text = "tasks on k devices, each a k-th of the time and so many per cent more"
    parser.add_argument("--gangs", type=console.whole(0, 100), metavar="PERCENT", help=text)
    parser.add_argument("--curve", action="store_true", help="how build time and memory grow")
    options = parser.parse_args(arguments)
    if options.curve:
        for told in curve(options.jobs, options.time_limit):
            print(told, flush=True)
        return 0
    near = True
    for name in options.only or (WORKLOADS if options.gangs is not None else names):
        problem = scale() if name == "scale" else workload(name)
        if options.gangs is not None:
            told, fits = gangs(name, problem, options.gangs, options.time_limit, options.jobs)
        else:
            row = solve(name, problem, options.time_limit, options.jobs)
            told, fits = line(row), near_bound(row.plan.prediction)
        print(told, flush=True)
        near &= fits
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
