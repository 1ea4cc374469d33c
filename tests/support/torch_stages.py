"""A step of a small model in torch.distributed.pipelining, as exported schedules say.

    python torch_stages.py WORLD DIR [DIR ...]

Its ranks talk over gloo on the loopback. In each folder a rank reads schedule.csv and stages.json,
and writes what it found: rank0.pt, ...
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.multiprocessing import start_processes
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

LAYERS, WIDTH = 8, 12


def model() -> nn.Sequential:
    """As many layers as the plans are of; linear ones and others in turn."""
    torch.manual_seed(3)
    own = [nn.Linear(WIDTH, WIDTH) if k % 2 == 0 else nn.GELU() for k in range(LAYERS - 1)]
    return nn.Sequential(*own, nn.Linear(WIDTH, 3))


def batch(samples: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    made = torch.Generator().manual_seed(5)
    return torch.randn(samples, WIDTH, generator=made), torch.randn(samples, 3, generator=made)


def loss(outputs: Tensor, targets: Tensor, microbatches: int) -> Tensor:
    """A microbatch's part of a step's loss."""
    return F.mse_loss(outputs, targets) / microbatches


class Recomputed(nn.Module):
    """Layers that keep only their input from forward to backward."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layers, x, use_reentrant=False)


def step(folder: Path) -> dict[str, Any]:
    """Losses of the microbatches, on the last stage's rank, and gradients of this rank's layers."""
    told = json.loads((folder / "stages.json").read_text())
    count, every = told["microbatches"], told["stages"]
    whole, stages = model(), list[PipelineStage]()
    for one in every:
        if one["rank"] == dist.get_rank():
            layers = whole[one["first_layer"] : one["end_layer"]]
            part = Recomputed(layers) if one["recompute"] else layers
            stages.append(PipelineStage(part, one["stage"], len(every), torch.device("cpu")))
    schedule = _PipelineScheduleRuntime(
        stages, count, loss_fn=lambda y, t: loss(y, t, count), scale_grads=False
    )
    schedule._load_csv(str(folder / "schedule.csv"), format="compute_comms")
    inputs, targets = batch(told["batch"])
    losses: list[Tensor] = []
    first = (inputs,) if stages[0].is_first else ()
    schedule.step(*first, target=targets, losses=losses if stages[-1].is_last else None)
    grads = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    return {"losses": [loss.detach() for loss in losses], "grads": grads}


def ranks(rank: int, world: int, meeting: str, folders: list[str]) -> None:
    """One of `world` processes, which find each other in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    for folder in map(Path, folders):
        torch.save(step(folder), folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    world, folders = int(sys.argv[1]), sys.argv[2:]
    with TemporaryDirectory() as own:  # forked, so that torch is imported once
        start_processes(
            ranks, (world, f"{own}/meeting", folders), nprocs=world, start_method="fork"
        )
