"""A sweep that ends the weaker settings early, beside one that trains all of them to the end.

    python -m tests.benchmarks.sweep

24 settings of a small CNN on four emulated devices, compared after 10, 30 and 90 steps. One row
for each rung, and one for the sweep and for all to the end: times planned and actual, and their
ratio. Exit code 1 unless the sweep takes at most 0.55 of all to the end and keeps the best setting
with its value, and each rung takes within 5 % of what was planned; a busy machine may be the cause.
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from executor import Evaluation, Sweep, Task, grid
from profiles.console import columns

RUNGS = (10, 30, 90)
BATCH, SIDE, KINDS = 16, 16, 4
MACHINE = ("--device-memory", "8MiB", "--devices", "4", "--slow-compute", "24")


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Noisy images, and which quarter of each is a little brighter."""
    generator = torch.Generator().manual_seed(step)
    quarter = torch.randint(KINDS, (BATCH,), generator=generator)
    images = torch.randn(BATCH, 1, 2, SIDE // 2, 2, SIDE // 2, generator=generator)
    images[torch.arange(BATCH), 0, quarter // 2, :, quarter % 2] += 0.5
    return images.reshape(BATCH, 1, SIDE, SIDE), quarter


def net(width: int, drop: float) -> nn.Sequential:
    """Two convolutions and a linear layer."""
    first, second = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
    ending = nn.Linear(width * (SIDE // 2) ** 2, KINDS)
    body = (first, nn.ReLU(), nn.Sequential(second, nn.ReLU(), nn.MaxPool2d(2)))
    return nn.Sequential(*body, nn.Flatten(), nn.Dropout(drop), ending)


def trial(name: str, lr: float, width: int, drop: float) -> Task:
    """The task of a setting."""
    judged = Evaluation(every=RUNGS[0], data=lambda n: batch(1_000_000 + n), batches=4)
    return Task(
        name=name,
        model=partial(net, width, drop),
        data=batch,
        loss=nn.functional.cross_entropy,
        optimizer=partial(torch.optim.AdamW, lr=lr),
        steps=RUNGS[-1],
        evaluate=judged,
    )


def sweep() -> Sweep:
    """24 settings."""
    choices = {"lr": (1e-5, 1e-4, 3e-4, 1e-3, 1e-2, 1e-1), "width": (8, 16), "drop": (0.0, 0.2)}
    return Sweep(grid(choices), task=trial, rungs=RUNGS, metric="val_loss")


def called(*arguments: object) -> Any:
    """The JSON that a command prints."""
    command = [sys.executable, "-m", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main() -> int:
    """Print the rows."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    with TemporaryDirectory() as folder:
        own, every = Path(folder, "sweep"), Path(folder, "all")
        begun = perf_counter()
        tuned = called("executor", "tune", f"{__file__}:sweep", *MACHINE, "-o", own)
        wall_s = perf_counter() - begun
        plan = every.with_suffix(".json")
        called("planner", "build", own / "profile.json", "--devices", 4, "-o", plan)
        trained = called("executor", "run", plan, "-o", every)
    last = {one["task"]: one["val_losses"][-1]["loss"] for one in trained["tasks"]}
    best = min(last, key=last.__getitem__)
    winner = tuned["tasks"][0]
    kept = winner["task"] == best and winner["metric"][str(RUNGS[-1])] == last[best]
    rows = [(f"{r['tasks']} to step {r['step']}", r) for r in tuned["rungs"]]
    good = all(abs(r["actual_us"] / r["predicted_us"] - 1) <= 0.05 for _, r in rows)
    rows += [("the sweep", tuned), (f"{len(last)} to the end", trained)]
    head = ("", "planned s", "actual s", "ratio")
    table = [
        (
            what,
            f"{r['predicted_us'] / 1e6:.2f}",
            f"{r['actual_us'] / 1e6:.2f}",
            f"{r['actual_us'] / r['predicted_us']:.3f}",
        )
        for what, r in rows
    ]
    print("\n".join(columns([head, *table], numbers=True)))
    part = tuned["actual_us"] / trained["actual_us"]
    print(f"the sweep takes {part:.3f} of all to the end; with profile and plans {wall_s:.0f} s")
    print(f"the best to the end: {best}, {last[best]:.4f}; of the sweep: {winner['task']}")
    return 0 if part <= 0.55 and kept and good else 1


if __name__ == "__main__":
    sys.exit(main())
