"""Cases that train in this process: the same numbers as the plain loop, and honest budgets."""

import gc
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

import executor.cli
import plans
from executor import driver
from executor.workload.task import Task
from plans.schema import Plan
from plans.schema import Task as PlanTask
from tests.gpu import tools
from tests.gpu.plain import Way, train
from tests.gpu.shapes import Settings
from tests.gpu.tools import Bench, Skip, Trouble, Workload

Figures = dict[str, Any]

TINY = Settings(steps=4, batch=4, seq=32, tiny=1, layers=2)
SMALL = Settings(steps=4, batch=8, seq=256)
ROOM = 0.25  # of the way from the smallest budget to one that would hold everything
BUDGETS = 20
SEED = 20


@dataclass(frozen=True)
class Case:
    """A workload to be trained twice. needs: fields of Task without which it cannot be."""

    function: str
    changes: Mapping[str, Any]
    needs: frozenset[str] = frozenset()


CLIP, HALF = frozenset({"clip"}), frozenset({"precision"})
CASES = {
    "fp32": Case("gpt_small", {"dropout": 0.1}),
    "clip": Case("gpt_small", {"dropout": 0.1, "clip": 0.1}, CLIP),
    "tied": Case("gpt_small", {"dropout": 0.1, "tied": 1}),
    "pair": Case("gpt_pair", {"dropout": 0.1}),
    "bf16": Case("gpt_small", {"dropout": 0.1, "precision": "bf16"}, HALF),
    "bf16-clip": Case("gpt_small", {"clip": 0.1, "precision": "bf16"}, HALF | CLIP),
    "autocast": Case("gpt_small", {"dropout": 0.1, "precision": "bf16-autocast"}, HALF),
    "fp16": Case("gpt_small", {"clip": 0.1, "precision": "fp16-autocast"}, HALF | CLIP),
}


def same_numbers(bench: Bench, name: str) -> Figures:
    """Train as planned, then plainly; Trouble unless every loss and parameter has equal bits."""
    case = CASES[name]
    missing = case.needs - {field.name for field in fields(Task)}
    if missing:
        raise Skip(f"executor.workload.task.Task has no {' and no '.join(sorted(missing))}")
    settings = replace(TINY if bench.tiny else SMALL, **case.changes)
    work = Workload(f"same-{name}", case.function, settings.environment())
    with _environment(work.settings):
        path = _plan(bench, work)
        plan = plans.load(path)
        tasks = executor.cli.load_tasks(plan.tasks)
        result = executor.run(plan, tasks, driver.Options())
        figures = [
            _difference(bench, settings, plan, planned, task, result)
            for planned, task in zip(plan.tasks, tasks, strict=True)
        ]
    return _judged(plan, figures)


def _plan(bench: Bench, work: Workload) -> Path:
    """A plan that has to move things; of a workload whose kernels always give the same bits."""
    found = tools.found_plan(bench, work.name)
    if found:
        return found
    profile = bench.file("profiles", f"{work.name}.json")
    options = tools.profile_options(bench, deterministic=True)
    _command(executor.cli.main, ["profile", work.ref, *options, "-o", profile])
    least = tools.smallest_budget(bench, work)
    room = max(0, tools.in_memory_bytes(profile) - least)
    return tools.build(bench, work, {work.name: least + int(room * ROOM)}, work.name)


def _command(main: Any, arguments: list[object]) -> None:
    code = main([str(argument) for argument in arguments])
    if code:
        raise Trouble(f"{arguments[0]}: exit {code}, see logs/worker.txt")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _difference(
    bench: Bench,
    settings: Settings,
    plan: Plan,
    planned: PlanTask,
    task: Task,
    result: driver.Result,
) -> Figures:
    """How far a task's losses and parameters are from those of the plain loop, at most."""
    model = result.model(task.name)
    way = Way(bench.device, planned.microbatches, settings.precision, settings.clip)
    _like(bench, plan)
    losses, parameters = train(task, replace(way, hosted=_hosted(planned, model)))
    mine = {name: p.detach().cpu() for name, p in model.named_parameters()}
    worst = max(_distance(mine[name], value) for name, value in parameters.items())
    pairs = zip(result.losses[task.name], losses, strict=True)
    return {
        "same_losses": result.losses[task.name] == losses,
        "same_parameters": all(torch.equal(mine[n], value) for n, value in parameters.items()),
        "loss_difference": max(abs(a - b) for a, b in pairs),
        "parameter_difference": worst,
        "last_loss": losses[-1],
        "microbatches": planned.microbatches,
        "shards": len(planned.shards),
    }


def _hosted(planned: PlanTask, model: torch.nn.Module) -> frozenset[str]:
    """The names of parameters that the plan updates in host memory; the model's layers are its
    children, in their order."""
    children = [f"{name}." for name, _ in model.named_children()]
    layers = [
        children[number]
        for shard in planned.shards
        if shard.update == "host"
        for number in range(shard.first_layer, shard.end_layer)
    ]
    return frozenset(n for n, _ in model.named_parameters() if n.startswith(tuple(layers)))


def _like(bench: Bench, plan: Plan) -> None:
    """The switches that a run sets, for the plain loop, and all of the device's memory again."""
    _unbound(bench)
    torch.set_num_threads(plan.devices[0].threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_deterministic_debug_mode("error" if bench.device == "cuda" else "default")


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).abs().max()) if a.numel() else 0.0


def _judged(plan: Plan, figures: list[Figures]) -> Figures:
    worst = {
        key: max(task[key] for task in figures)
        for key in ("loss_difference", "parameter_difference", "microbatches", "shards")
    }
    moved = sum(op.id.split(".")[-1][0] in "PS" for p in plan.programs for op in p.round)
    found = worst | {
        "bitwise": all(task["same_losses"] and task["same_parameters"] for task in figures),
        "last_loss": figures[0]["last_loss"],
        "copies": moved,
        "together": max(len(program.tasks) for program in plan.programs),
    }
    if not found["bitwise"]:
        loss, parameter = found["loss_difference"], found["parameter_difference"]
        raise Trouble(f"not the same bits: losses differ by {loss:.3g}, values by {parameter:.3g}")
    return found


def honest_budgets(bench: Bench) -> Figures:
    """Random budgets from the smallest to all in memory: no run may need more than its own.

    A run is held to its budget by the executor itself; one that fails or takes more is broken. A
    budget without a plan is a failure as well, since it is not below the smallest.
    """
    settings = replace(TINY if bench.tiny else SMALL, steps=2)
    work = Workload("budgets", "gpt_small", settings.environment())
    sizes = _sizes(bench, work)
    if not sizes:
        raise Skip("no solver (pulp, highspy) here, and no budget-*.json given with --plans")
    rows: list[Figures] = []
    broken: list[str] = []
    for name, size in sizes.items():
        if rows and bench.left < 5:
            break
        try:
            plan = plans.load(tools.build(bench, work, sizes, name))
        except Trouble as trouble:
            broken.append(f"{size} bytes: {trouble}")
            continue
        with _environment(work.settings):
            rows.append(_held(bench, plan, size))
        if rows[-1]["failed"] or rows[-1]["share"] > 1:
            broken.append(f"{size} bytes: {rows[-1]['failed'] or rows[-1]['share']}")
    if broken:
        raise Trouble(f"{len(broken)} of {len(sizes)} budgets broken, first {broken[0]}")
    return {
        "budgets": len(rows),
        "planned": len(sizes),
        "worst_share": max(row["share"] for row in rows),
        "worst_allocated": max(row["allocated"] for row in rows),
        "rows": rows,
    }


def _sizes(bench: Bench, work: Workload) -> dict[str, int]:
    """Budgets by plan name; those of plans that are given, where none can be made."""
    folder = bench.plans if bench.plans and not tools.has_planner() else None
    if folder:
        known = sorted(folder.glob("budget-*.json"))
        return {path.stem: plans.load(path).devices[0].budget_bytes for path in known}
    least = tools.smallest_budget(bench, work)
    most = max(least + 1, tools.in_memory_bytes(tools.profile(bench, work)))
    draw = random.Random(SEED)
    count = 3 if bench.tiny else BUDGETS
    return {f"budget-{number:02}": draw.randint(least, most) for number in range(count)}


def _held(bench: Bench, plan: Plan, size: int) -> Figures:
    """Run the plan: the share of its budget that was taken, and what torch's allocator gave out
    in all, libraries' workspaces too."""
    gc.collect()
    on_device = bench.device == "cuda"
    if on_device:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated() if on_device else 0
    failed, taken = "", 0
    try:
        result = executor.run(plan, executor.cli.load_tasks(plan.tasks), driver.Options())
        taken = max(result.peak_bytes)
    except Exception as error:  # whatever it is, this budget did not hold
        failed = f"{type(error).__name__}: {str(error)[:200]}"
    allocated = torch.cuda.max_memory_allocated() - base if on_device else taken
    _unbound(bench)
    return {
        "bytes": size,
        "share": taken / size,
        "allocated": allocated / size,
        "failed": failed,
    }


def _unbound(bench: Bench) -> None:
    """Take back the limit that a run has set for its process."""
    if bench.device == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0)
