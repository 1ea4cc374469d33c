"""Hand-made timetables x precision x clipping x optimizers x schedules x groups, whole or gone on
from a checkpoint, on emulated devices or on a CUDA runtime of threads: every bit of a run is that
of a plain PyTorch loop.

Not every combination is run, but every two values of two factors that may meet do.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support import fake_cuda, handmade
from support.chains import block, tasks_for
from support.covering import covering
from support.fit import fit
from support.optimizers import Odd, by_kind
from support.pauses import pausing
from support.same import assert_same, goes_on
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import plans
from executor import run
from executor.devices import hostmem
from executor.workload.task import Task
from plans.schema import Plan

PLANS = handmade.PLANS | handmade.NOTED | handmade.CASTING
NAMES = dict.fromkeys(name.removeprefix("cast-") for name in PLANS)
ONE_SEGMENT = {name for name, make in PLANS.items() if len(make().segments) == 1}
OPTIMIZERS: dict[str, Any] = {
    "fused": partial(AdamW, lr=1e-2, fused=True),
    "momentum": partial(SGD, lr=0.1, momentum=0.9),
    "odd": Odd,
}
# Autocast has to do with what layers keep, and with nothing else that plans differ in.
CAST_THERE = ("streamed", "saved", "packed", "pipeline", "halves", "norms-host")
KINDS = ("cpu", "cuda", "narrow")
PRECISIONS = ("fp32", "bf16-autocast", "bf16", "cast", "fp16-autocast")


class Case(NamedTuple):
    """precision: the task's; "cast" is bf16 with parameters that are made from masters and not kept
    on the host. clip: the largest norm. scheduled: the rate falls with each step. grouped: options
    go by names. ends: goes on after two steps. kind: of its devices, which are emulated, or threads
    in which copies happen later than they are launched, or a driver that has room for few."""

    plan: str
    optimizer: str
    precision: str
    clip: float | None
    scheduled: bool
    grouped: bool
    ends: bool
    kind: str

    @property
    def made(self) -> str:
        """The name of its plan."""
        return f"cast-{self.plan}" if self.precision == "cast" else self.plan

    @property
    def possible(self) -> bool:
        """Norms are for clipping and loss scales, checkpoints for plans of one segment."""
        normed = self.clip is not None or self.precision == "fp16-autocast"
        return (
            self.made in PLANS
            and (self.precision != "bf16-autocast" or self.plan in CAST_THERE)
            and (self.plan in handmade.NOTED) == normed
            and (self.made in ONE_SEGMENT or not self.ends)
        )


def cases() -> Iterator[Case]:
    """All that are possible."""
    twice = [(False, True)] * 3
    every = product(NAMES, OPTIMIZERS, PRECISIONS, (None, 0.05), *twice, KINDS)
    return (case for case in map(Case._make, every) if case.possible)


def planned(case: Case, **changed: Any) -> tuple[Plan, list[Task]]:
    """The case's proven plan and tasks."""
    own = {
        "optimizer": OPTIMIZERS[case.optimizer],
        "precision": "bf16" if case.precision == "cast" else case.precision,
        "clip": case.clip,
        "scheduler": partial(ExponentialLR, gamma=0.7) if case.scheduled else None,
        "groups": by_kind if case.grouped else None,
    }
    made = PLANS[case.made]()
    cuda = case.kind != "cpu"
    still = cuda and len(made.devices) > 1  # random numbers are those of one generator there
    tasks = [
        replace(task, **own | changed)
        for task in tasks_for(made, partial(block, 0.25 * (not still)))
    ]
    plan = fit(made, tasks)
    plan = fake_cuda.on_cuda(plan) if cuda else plan
    plans.prove(plan)
    return plan, tasks


def named(case: Case) -> str:
    flags = [flag for flag in Case._fields[4:7] if getattr(case, flag)]
    return "-".join(map(str, [*case[:4], *flags, case.kind]))


@pytest.mark.parametrize("case", covering(cases()), ids=named)
def test_bits_of_the_plain_loop(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, parameters, optimizer state and buffers, with dropout."""
    plan, tasks = planned(case)
    pausing(monkeypatch, len(case.plan), 300)
    if case.kind != "cpu":
        room = 8 if case.kind == "narrow" else 1000
        fake_cuda.install(monkeypatch, len(case.plan), devices=len(plan.devices), room=room)
        monkeypatch.setattr(hostmem, "PIECE", 128)  # of a ring of few small slots
        monkeypatch.setattr(hostmem, "RING_BYTES", 3 * 128)
    if case.ends:
        goes_on(plan, tasks, tmp_path, step=2)
    else:
        assert_same(plan, tasks, run(plan, tasks))


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 30 * F.mse_loss(outputs, targets)


@pytest.mark.parametrize("name", handmade.NOTED)
def test_steps_are_left_out_while_the_loss_scale_is_too_high(name: str, tmp_path: Path) -> None:
    """Gradients that overflow halve the scale and change nothing else, as with GradScaler; also
    where the run goes on from a checkpoint."""
    case = Case(name, "fused", "fp16-autocast", None, *[False] * 3, "cpu")
    plan, tasks = planned(case, loss=loud)
    result = run(plan, tasks)
    assert_same(plan, tasks, result)
    for task in tasks:
        counts = {int(s["step"]) for s in result.optimizer_state(task.name).values()}
        assert 0 < max(counts) < task.steps
    goes_on(plan, tasks, tmp_path)
