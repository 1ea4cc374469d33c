"""A pipeline of two devices, each in a process of its own, against the same plan in one process."""

from typing import Any

import torch

from executor.numerics import same
from tests.gpu import tools
from tests.gpu.shapes import Settings
from tests.gpu.tools import Bench, Skip, Trouble, Workload

Figures = dict[str, Any]

TINY = Settings(steps=4, batch=4, seq=32, tiny=1, layers=4, dropout=0.1)
SMALL = Settings(steps=6, batch=8, seq=512, dropout=0.1)
TOGETHER = ("-m", "torch.distributed.run", "--nproc-per-node", 2)


def pipeline(bench: Bench, order: str) -> Figures:
    """Train twice; Trouble unless every state has equal bits."""
    if bench.device == "cuda" and torch.cuda.device_count() < 2:
        raise Skip("fewer than two GPUs are here")
    work = Workload("processes", "gpt_small", (TINY if bench.tiny else SMALL).environment())
    profile, plan = bench.file("profiles", "processes.json"), bench.file("plans", f"{order}.json")
    if not profile.exists():
        options = [*tools.profile_options(bench, deterministic=True), "--devices", 2]
        _made(bench, work, "profile", "executor", "profile", work.ref, *options, "-o", profile)
    layout = ["--devices", 2, "--layout", "2x1", "--order", order, *tools.build_options(bench)]
    _made(bench, work, f"build-{order}", "planner", "build", profile, *layout, "-o", plan)
    steps = {}
    for name, start in (("one", ()), ("two", TOGETHER)):
        folder = bench.file("runs", f"{order}-{name}")
        run = ("executor", "run", plan, "-o", folder)
        _made(bench, work, f"run-{order}-{name}", *run, start=start)
        steps[name] = tools.step_us(folder)
    folders = [bench.file("runs", f"{order}-{name}") for name in steps]
    one, two = ({f.name: torch.load(f) for f in folder.glob("*.pt")} for folder in folders)
    if not one or not same(one, two):
        raise Trouble("two processes train other bits than one")
    return {"step_us": steps["two"], "alone_us": steps["one"]}


def _made(
    bench: Bench, work: Workload, name: str, *words: object, start: tuple[object, ...] = ()
) -> None:
    done = tools.python(bench, [*start, "-m", *words], work.settings, name)
    tools.succeeded(done, name)
