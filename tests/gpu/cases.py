"""What the suite measures: its cases in the order of their importance, and how long each takes.

A case that finds its device's time used up is not run, so what matters most comes first. A case
also pays for what it is the first to need: a profile, plans, a run.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.serial import serial

import plans
from tests.gpu import tools
from tests.gpu.pipelines import pipeline
from tests.gpu.shapes import SIZES, Settings, fitting_layers
from tests.gpu.tools import Bench, Skip, Trouble, Workload

Figures = dict[str, Any]

GIB = 1 << 30
BUDGETS = {8: 0.1, 16: 0.3, 24: 0.5, 40: 0.8}
"""GiB; for tiny models how far from the smallest budget to all in memory."""

LARGE = {
    "1b3": Settings(steps=8, batch=8, seq=2048),
    "7b": Settings(steps=5, batch=8, seq=2048),
}
TINY = Settings(steps=4, batch=2, seq=32, tiny=1, layers=2)


PLAN_S = {"1b3": 65, "7b": 90}
"""Seconds on an H200 for a model's profile and plans, for a run, and for the plain loops."""
RUN_S = {"1b3": 22, "7b": 48}
PLAIN_S = {"1b3": 30, "7b": 45}


PEER_BYTES = 22
"""Host memory a parameter takes in a peer: fp32 value, gradient and two moments, page-locked
blocks rounded up to powers of two."""


@dataclass(frozen=True)
class Case:
    """own_s: seconds on an H200 for what is made for this case alone. uses: of the model's things
    "run" (within gib) and "plain", made by the first case that needs them. run None: the worker
    does it."""

    name: str
    own_s: int
    run: Callable[[Bench], Figures] | None = None
    model: str = ""
    gib: int = 0
    uses: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return self.name.partition("-")[0]

    def expected_s(self, bench: Bench) -> int:
        """About how many seconds it will take, with what is missing so far."""
        plan = f"{self.model}-{self.gib}.json"
        folders = [bench.file("plans", ""), *([bench.plans] if bench.plans else [])]
        seconds = self.own_s
        if "run" in self.uses and not bench.file("runs", plan).exists():
            planned = any((folder / plan).exists() for folder in folders)
            seconds += RUN_S[self.model] + (0 if planned else PLAN_S[self.model])
        if "plain" in self.uses and not bench.file("runs", f"plain-{self.model}.json").exists():
            seconds += PLAIN_S[self.model]
        return seconds


def workload(bench: Bench, model: str) -> Workload:
    """The model with the suite's settings, so many of its layers as the host can hold."""
    settings = replace(TINY if bench.tiny else LARGE[model], precision=bench.precision)
    if not bench.tiny:
        layers = fitting_layers(SIZES[model], bench.host_bytes)
        settings = replace(settings, layers=layers)
    return Workload(model, f"gpt_{model}", settings.environment())


def budgets(bench: Bench, work: Workload) -> dict[str, int]:
    """Bytes by plan name."""
    if not bench.tiny:
        return {f"{work.name}-{gib}": gib * GIB for gib in BUDGETS}
    least = tools.smallest_budget(bench, work)
    room = tools.in_memory_bytes(tools.profile(bench, work)) - least
    return {f"{work.name}-{gib}": least + int(room * share) for gib, share in BUDGETS.items()}


@dataclass(frozen=True)
class Ran:
    """A plan, what its run said, and tokens per second."""

    plan: Mapping[str, Any]
    result: Mapping[str, Any]
    tokens_per_s: float


def replayed(bench: Bench, model: str, gib: int, *, one_by_one: bool = False) -> Ran:
    """The model trained within a budget as planned, or with one op at a time."""
    work, name = workload(bench, model), f"{model}-{gib}"
    found = tools.found_plan(bench, name)
    path = found or tools.build(bench, work, budgets(bench, work), name)
    if one_by_one:
        plan, path = plans.load(path), path.with_stem(f"{path.stem}-serial")
        plans.save(path, serial(plan))
    result = tools.run(bench, work, path)
    return Ran(json.loads(path.read_text()), result, _tokens_per_s(work, result["step_us"]))


def _tokens_per_s(work: Workload, step_us: int) -> float:
    return work.number("batch") * work.number("seq") / step_us * 1e6


def in_memory(bench: Bench, model: str) -> dict[str, Figures]:
    """The plain loop, by how it treats activations; measured at the first call."""
    work, path = workload(bench, model), bench.file("runs", f"plain-{model}.json")
    if not path.exists():
        command = ["-m", "tests.gpu.plain", model, "--device", bench.device]
        command += ["--steps", "3" if bench.tiny else "5"]
        done = tools.python(bench, command, work.settings, f"plain-{model}")
        found = tools.last_json(tools.succeeded(done, f"plain-{model}"), f"plain-{model}")
        path.write_text(json.dumps(found, indent=1))
    variants = json.loads(path.read_text())["variants"]
    return {one["keep"]: one for one in variants}


def spill(bench: Bench, model: str, gib: int) -> Figures:
    """What a budget costs: the step over that of plain loops with all of the device's memory.

    same: the loop that recomputes as well; best: the fastest of all. roofline: the plan's lower
    bound over what happened, of the whole run; period: planned over actual step. Trouble for a
    run that took more than its budget.
    """
    ran = replayed(bench, model, gib)
    step_us = ran.result["step_us"]
    bound = max(ran.plan["prediction"]["bounds"], key=lambda bound: bound["us"])
    figures = {
        "tokens_per_s": round(ran.tokens_per_s, 1),
        "step_us": step_us,
        "budget_bytes": ran.plan["devices"][0]["budget_bytes"],
        "peak_bytes": max(ran.result["peak_bytes"]),
        "host_bytes": ran.result["host_bytes"],
        "roofline": bound["us"] / ran.result["actual_us"],
        "period": ran.plan["programs"][0]["period_us"] / step_us,
        "bound": bound["name"],
        "microbatches": ran.plan["tasks"][0]["microbatches"],
    }
    if figures["peak_bytes"] > figures["budget_bytes"]:
        raise Trouble(f"took {figures['peak_bytes']} bytes of {figures['budget_bytes']}")
    if any(ran.result["late_allocations"]):
        raise Trouble(f"asked the device for memory {ran.result['late_allocations']} times late")
    return figures | _layers(bench, model) | _taxes(bench, model, step_us)


def _layers(bench: Bench, model: str) -> Figures:
    """How many layers there are, where they are not all."""
    layers, whole = workload(bench, model).number("layers"), SIZES[model].layers
    return {"layers": f"{layers} of {whole}"} if not bench.tiny and layers < whole else {}


def _taxes(bench: Bench, model: str, step_us: int) -> Figures:
    try:
        plain = in_memory(bench, model)
    except Trouble as trouble:
        return {"plain": str(trouble)}
    steps = {keep: one["step_us"] for keep, one in plain.items() if "step_us" in one}
    if not steps:
        return {"plain": "does not fit the device"}
    same = steps.get("boundaries")
    return ({"tax_same": step_us / same} if same else {}) | {
        "tax_best": step_us / min(steps.values())
    }


def prediction(bench: Bench, model: str, gib: int) -> Figures:
    """How honest the plan was; more memory than planned is a failure."""
    ran = replayed(bench, model, gib)
    plan, folder = bench.file("plans", f"{model}-{gib}.json"), bench.file("runs", f"{model}-{gib}")
    if not tools.has_planner():
        raise Skip("comparing needs the planner's packages")
    found = tools.compare(bench, plan, folder)
    peaks = found["peak_bytes"]
    if any(a > p for a, p in zip(peaks["actual"], peaks["predicted"], strict=True)):
        raise Trouble(f"took {peaks['actual']} bytes, planned were {peaks['predicted']}")
    return {
        "makespan_error": found["makespan_error"],
        "median_op_error": found["median_op_error"],
        "exposed_copy_us": found["exposed_copy_us"],
        "kinds": {kind: times["ratio"] for kind, times in found["kinds"].items()},
        "peak_share": max(peaks["actual"]) / max(peaks["predicted"]),
        "step_us": ran.result["step_us"],
    }


def overlap(bench: Bench, model: str, gib: int) -> Figures:
    """The same plan with no two ops of the device at once, over as planned."""
    planned = replayed(bench, model, gib).result["step_us"]
    apart = replayed(bench, model, gib, one_by_one=True).result["step_us"]
    return {"ratio": apart / planned, "planned_us": planned, "serial_us": apart}


def peer(bench: Bench, which: str, model: str, gib: int) -> Figures:
    """Our tokens per second over those of a peer with the same budget, model and tokens."""
    work, name = workload(bench, model), f"{which}-{model}-{gib}"
    size, layers = SIZES[model], work.number("layers")
    needed = PEER_BYTES * (size.end_parameters + layers * size.layer_parameters)
    if not bench.tiny and needed > bench.host_bytes:
        raise Skip(f"{which} needs about {needed >> 30} GiB of host memory for {layers} layers")
    command = ["-m", "tests.gpu.peers", which, model, "--device", bench.device]
    command += ["--budget", str(gib * GIB), "--steps", "3"]
    done = tools.python(bench, command, work.settings, name)
    found = tools.last_json(tools.succeeded(done, name), name)
    if "status" in found:
        raise Skip(f"{which}: {found['status']}")
    if "error" in found:
        raise Trouble(f"{which}: {found['error']}")
    theirs = _tokens_per_s(work, found["step_us"])
    figures = found | {"theirs_per_s": round(theirs, 1)}
    try:
        ours = replayed(bench, model, gib).tokens_per_s
    except (Trouble, Skip) as reason:
        return figures | {"ours": str(reason)}
    return figures | {"ours_per_s": round(ours, 1), "faster": ours / theirs}


def primitives(bench: Bench) -> Figures:
    """What the device, its driver and torch do by themselves; Trouble where that is not what the
    executor relies on."""
    if bench.device == "cpu":
        raise Skip("there is no driver to be asked")
    done = tools.python(bench, ["-m", "tests.gpu.primitives"], {}, "primitives")
    rows = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    wrong = [f"{row['question']}: {row['wrong']}" for row in rows if "wrong" in row]
    if wrong:
        raise Trouble("; ".join(wrong))
    tools.succeeded(done, "primitives")
    return {row.pop("question"): row for row in rows}


def _spill(model: str, gib: int) -> Case:
    name, run = f"spill-{model}-{gib}", partial(spill, model=model, gib=gib)
    return Case(name, 1, run, model, gib, ("run", "plain"))


def _prediction(model: str, gib: int) -> Case:
    name, run = f"prediction-{model}-{gib}", partial(prediction, model=model, gib=gib)
    return Case(name, 4, run, model, gib, ("run",))


def _overlap(model: str, gib: int) -> Case:
    name, run = f"overlap-{model}-{gib}", partial(overlap, model=model, gib=gib)
    return Case(name, RUN_S[model], run, model, gib, ("run",))


def _peer(which: str, model: str, gib: int, own_s: int) -> Case:
    run = partial(peer, which=which, model=model, gib=gib)
    return Case(f"peers-{which}-{model}-{gib}", own_s, run, model, gib, ("run",))


CASES = (
    Case("primitives", 40, primitives),
    Case("correctness-fp32", 55),  # the first one waits for torch
    Case("correctness-bf16", 40),
    Case("correctness-bf16-clip", 40),
    Case("correctness-pair", 40),
    _spill("1b3", 16),
    _prediction("1b3", 16),
    _spill("1b3", 8),
    _peer("fsdp2", "1b3", 16, 45),
    _spill("7b", 16),
    _prediction("7b", 16),
    _overlap("1b3", 16),
    Case("budgets-small", 40),
    _spill("7b", 8),
    Case("correctness-clip", 40),
    Case("correctness-tied", 40),
    Case("correctness-autocast", 40),
    Case("correctness-fp16", 40),
    _spill("1b3", 40),
    _spill("7b", 40),
    _spill("1b3", 24),
    _spill("7b", 24),
    _peer("deepspeed", "1b3", 16, 60),
    _peer("fsdp2", "7b", 16, 110),
    Case("processes-1f1b", 90, partial(pipeline, order="1f1b")),
    Case("processes-zero-bubble", 60, partial(pipeline, order="zero-bubble")),
)


def chosen(only: str) -> tuple[Case, ...]:
    """The cases of these groups and names, comma-separated; all of them for an empty string.

    ValueError for a part that names none.
    """
    wanted = [part for part in only.split(",") if part]
    for part in wanted:
        if not any(part in (case.name, case.group) for case in CASES):
            groups = ", ".join(dict.fromkeys(case.group for case in CASES))
            raise ValueError(f"{part!r} is neither a case nor one of the groups {groups}")
    return tuple(
        case for case in CASES if not wanted or case.name in wanted or case.group in wanted
    )
