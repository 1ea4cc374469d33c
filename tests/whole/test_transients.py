"""The cost model against the memory meter: no plan runs out of what it reserved."""

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest

pytest.importorskip("torch")

import torch
from support import quick
from support.apart import planned
from support.chains import chain, rows
from support.device_cases import laid_out
from support.slabs import bound
from torch import Tensor, nn

from executor import run
from planner.inputs.problem import Problem
from planner.pipelines.sketch import ZERO_BUBBLE, PipelineSpec, Sketch
from planner.search.local_search import resettled
from planner.shards.costs import TaskCosts
from planner.shards.modes import Activations, Mode
from planner.shards.shard_cost import Links
from planner.shards.strategy import Strategy
from profiles.schema import Emulation

FAST = Emulation(h2d_bytes_per_s=10**10, d2h_bytes_per_s=10**10, latency_us=0)
WIDTHS = (16, 256, 8, 512, 32, 4)  # boundaries and transients differ with them
BATCH = 32


def model() -> nn.Sequential:
    pairs = pairwise(WIDTHS)
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairs))


def tall() -> nn.Sequential:
    """Activations take more than parameters, and most of them no gradient of a parameter needs."""
    norm, up, down = (
        partial(nn.LayerNorm, 16),
        partial(nn.Linear, 16, 64),
        partial(nn.Linear, 64, 16),
    )
    return nn.Sequential(
        *(nn.Sequential(norm(), up(), nn.GELU(), nn.Dropout(0.1), down()) for _ in range(6))
    )


def long_rows(step: int) -> tuple[Tensor, Tensor]:
    made = torch.randn(2, 6, 64, 16, generator=torch.Generator().manual_seed(step))
    return made[0], made[1]


TASK = chain(
    "u", 0, BATCH, 1, model=model, data=partial(rows, BATCH, width=WIDTHS[0], out=WIDTHS[-1])
)
TALL = replace(TASK, model=tall, data=long_rows)
measured = cache(partial(quick.measured, microbatches=None))

MODES = (
    Mode("streamed", "host", "recompute"),
    Mode("resident", "device", "saved"),
    Mode("kept", "host", "offload"),
    Mode("streamed", "device-streamed", "offload"),
)


@pytest.mark.parametrize("cut", [(), (2,), (1, 3), (2, 4), (1, 2, 4), (1, 2, 3, 4)])
def test_every_cut_runs_in_what_it_reserves(
    cut: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever layers a shard joins, and whatever happens to its activations, its ops take no more
    than predicted, which the executor measures; and the slab is used to its end."""
    asked = Problem.of(measured(TASK), devices=1, device_bytes=None, host_bytes=None)
    costs = TaskCosts(asked.tasks[0], BATCH if len(cut) % 2 else BATCH // 8)
    cuts = (0, *cut, 5)
    mode = MODES[(sum(cut) + len(cut)) % len(MODES)]
    plain = Strategy(costs, cuts, (mode,) * (len(cuts) - 1), len(cut) // 2, lumped=False)
    plan = planned(asked, resettled(plain))
    ends = bound(monkeypatch, plan)
    done = run(plan, [TASK])
    (memory,) = plan.programs[0].memory
    needs = memory.slab_bytes + memory.reserve_bytes
    assert ends == [memory.slab_bytes]
    assert done.peak_bytes[0] <= needs
    assert done.peak_bytes[0] > needs * 2 // 3  # and no wild guess either


@pytest.mark.parametrize(
    ("cut", "activations"), [(1, "recompute"), (2, "saved"), (3, "offload"), (5, "recompute")]
)
def test_parts_of_backwards_run_in_what_they_reserve(cut: int, activations: Activations) -> None:
    """However many layers a shard has whose backwards are split, I takes no more than predicted
    beside what waits for W."""
    asked = Problem.of(measured(TALL), devices=2, device_bytes=None, host_bytes=None)
    costs, points = TaskCosts(asked.tasks[0], 2), (0, cut, 6)
    links = Links.of(asked.device)
    sketch = Sketch((PipelineSpec((1, 1), costs, points),), ZERO_BUBBLE, points, 1, links)
    modes = (Mode("resident", "device", activations), Mode("resident", "device"))
    plan = laid_out(asked, replace(sketch.strategy, modes=modes))
    assert any(".I" in op.id for op in plan.programs[0].round)
    peaks = run(plan, [TALL]).peak_bytes
    pairs = zip(peaks, plan.programs[0].memory, strict=True)
    assert all(m.slab_bytes + m.reserve_bytes >= peak for peak, m in pairs)
