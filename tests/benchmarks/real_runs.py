"""What runs on emulated devices last, beside what was planned and what they would last otherwise.

    python -m tests.benchmarks.real_runs [overlap|fleet ...]

Each workload is profiled on this machine, planned and run; a row of times in ms:

    overlap    a link-heavy chain as planned (ours), and with no two ops of a device at once
               (theirs): at least 1.15 times as long
    fleet      twelve tasks on four devices of emulated compute (ours), and what was predicted
               (theirs): at most 1.15 times as long

Exit code 1 where one is not so, which a busy machine may be the cause of.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.serial import serial

from executor import run
from executor.driver import Options as RunOptions
from executor.profiling.profiler import Options, profile
from executor.workload import Task, load
from executor.workloads import bytes_lm
from planner import Problem, build
from plans.schema import Plan
from profiles.console import columns
from profiles.schema import Emulation, Profile

HASH = "0" * 64
WIDTH, LAYERS, BATCH = 512, 8, 256


def model() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))
    )


def rows(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(2, BATCH, WIDTH, generator=generator)
    return x[0], x[1]


def chain() -> list[Task]:
    """Equal layers, a megabyte of parameters each."""
    optimizer = partial(SGD, lr=1e-2, fused=True)
    return [Task("wide", model, rows, F.mse_loss, optimizer, steps=8)]


LENGTH = 16  # of the texts of twelve tasks


class Rows(nn.Module):
    """A recurrent layer and a norm: (batch, length, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.norm = nn.GRU(width, width, batch_first=True), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x + self.cell(x)[0])
        return y


class Convolution(nn.Module):
    """A causal convolution over the text: (batch, length, width) -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weigh = nn.Conv1d(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.weigh(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2))


def _over_text(layer: Callable[[int], nn.Module], width: int) -> nn.Sequential:
    """Two layers of a kind between an embedding and a head, with dropout."""
    body = [nn.Sequential(layer(width), nn.Dropout(0.1)) for _ in range(2)]
    return nn.Sequential(bytes_lm.Embedding(width, LENGTH), *body, nn.Linear(width, bytes_lm.BYTES))


def twelve() -> list[Task]:
    """A transformer, a recurrent net and a convolution that learn a text, each in four ways."""
    found = []
    for way in range(1, 5):
        data = partial(bytes_lm.windows, seed=way, batch=2, length=LENGTH)
        rule = partial(AdamW, lr=10**-way, fused=True)
        base = partial(Task, data=data, loss=bytes_lm.next_byte_loss, optimizer=rule, seed=way)
        gpt = partial(bytes_lm.gpt, 64, 2, 4, LENGTH, 0.1)
        rows, mixed = partial(_over_text, Rows, 24), partial(_over_text, Convolution, 32)
        found += [
            base(f"gpt-{way}", gpt, steps=4, precision="bf16"),
            base(f"rows-{way}", rows, steps=5, clip=0.5),
            base(f"mixed-{way}", mixed, steps=6, precision="fp16-autocast"),
        ]
    return found


@dataclass(frozen=True)
class Setting:
    """A workload and the emulated devices that it runs on."""

    ref: str
    devices: int
    budget: int
    emulation: Emulation
    samples: int = 3

    def profile(self) -> Profile:
        options = Options(self.budget, self.emulation, self.devices, self.samples)
        return profile(self.ref, options)

    def plan(self, made: Profile) -> Plan:
        asked = Problem.of(made, devices=self.devices, device_bytes=None, host_bytes=None)
        return build(asked, profile_sha256=HASH)

    def run(self, plan: Plan) -> int:
        """How long a run of the plan lasts."""
        with tempfile.TemporaryDirectory() as folder:
            return run(plan, load(self.ref)[0], RunOptions(folder=Path(folder))).actual_us


class Row(NamedTuple):
    """Times in ms, the gap in percent of the bound; `good`: as the case says."""

    case: str
    ours: float
    theirs: float
    bound: float
    good: bool
    cpu_s: float = 0

    @property
    def gap(self) -> float:
        return 100 * (self.ours / self.bound - 1) if self.bound else 0


def overlap(setting: Setting) -> Row:
    """As planned, and without overlap."""
    plan = setting.plan(setting.profile())
    ours, theirs = setting.run(plan), setting.run(serial(plan))
    bound = plan.prediction.lower_bound_us
    return Row("overlap", ours / 1e3, theirs / 1e3, bound / 1e3, theirs >= 1.15 * ours)


def fleet(setting: Setting) -> Row:
    """Actual and predicted."""
    plan = setting.plan(setting.profile())
    ours = setting.run(plan)
    theirs, bound = plan.prediction.makespan_us, plan.prediction.lower_bound_us
    return Row("fleet", ours / 1e3, theirs / 1e3, bound / 1e3, ours <= 1.15 * theirs)


def _emulated(rate: int, slower: int = 1) -> Emulation:
    return Emulation(rate, rate, latency_us=20, compute_slowdown=slower)


CASES: dict[str, tuple[Callable[[Setting], Row], Setting]] = {
    "overlap": (overlap, Setting(f"{__file__}:chain", 1, 10 << 20, _emulated(4 * 10**8))),
    "fleet": (
        fleet,
        Setting(f"{__file__}:twelve", 4, 700 << 10, _emulated(2 * 10**8, 60), 1),
    ),
}


def measured(case: str) -> Row:
    """The row of a case, with the processor time that it took."""
    work, setting = CASES[case]
    before = sum(os.times()[:4])
    return work(setting)._replace(cpu_s=sum(os.times()[:4]) - before)


def main() -> int:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    cases = parser.parse_args().cases or list(CASES)
    if unknown := set(cases) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; cases are {', '.join(CASES)}")
    found = [measured(case) for case in cases]
    head = ("case", "ours ms", "theirs ms", "bound ms", "gap %", "cpu s", "")
    rows = [
        (
            row.case,
            *(f"{number:.1f}" for number in (*row[1:4], row.gap, row.cpu_s)),
            "" if row.good else "short",
        )
        for row in found
    ]
    print("\n".join(columns([head, *rows], numbers=True)))
    return 0 if all(row.good for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
