"""Other ways to train with a small device: the same model, tokens, budget and host.

    python -m tests.gpu.peers fsdp2 1b3 --device cuda --budget 17179869184

prints one JSON line: the median step and the most memory allocated, with the fewest microbatches
that fit; or a "status" that says why there is no number. Settings come from the environment, as
`models` says. Both peers keep fp32 masters and moments on the host and compute in bf16.
"""

import argparse
import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.optim import AdamW

from executor.workload.task import Task
from tests.gpu import models
from tests.gpu.plain import fewest, timed
from tests.gpu.shapes import SIZES, Settings, shapes

MARGIN = 50  # a 50th of the budget for what the allocator loses, as a plan's run has it
LOCAL = {  # a group of one process needs no network
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29517",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
}


def _model(task: Task, settings: Settings) -> nn.Sequential:
    """The model in fp32 on the host, its blocks recomputing their insides."""
    torch.manual_seed(task.seed)
    wide = replace(settings, precision="fp32")
    model = models.make(shapes(task.name, settings), wide).train()
    for number in range(1, len(model) - 1):
        model[number] = checkpoint_wrapper(model[number])
    return model


def fsdp2(task: Task, settings: Settings, device: str, steps: int) -> dict[str, Any]:
    """PyTorch's fully_shard in a group of one, parameters and optimizer on the host."""
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    model = _model(task, settings)
    half = settings.precision != "fp32"
    kind = torch.bfloat16 if half else None
    mixed = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=kind)
    offload = CPUOffloadPolicy() if device == "cuda" else OffloadPolicy()
    for number in range(1, len(model) - 1):
        fully_shard(model[number], mp_policy=mixed, offload_policy=offload)
    fully_shard(model, mp_policy=mixed, offload_policy=offload)
    try:
        try:
            found = {"optimizer": "fused"} | _trained(model, True, task, settings, device, steps)
        except RuntimeError:  # a kernel that does not take such parameters
            found = {"optimizer": "foreach"} | _trained(model, False, task, settings, device, steps)
    finally:
        dist.destroy_process_group()
    return found


def _trained(
    model: nn.Module,
    fused: bool,
    task: Task,
    settings: Settings,
    device: str,
    steps: int,
) -> dict[str, Any]:
    """Measured with AdamW, whose fused kernel is many times faster on a host."""
    optimizer = AdamW(model.parameters(), lr=1e-4, fused=fused)

    def attempt(microbatches: int) -> dict[str, Any]:
        def step(number: int) -> None:
            for x, y in _slices(task, number, microbatches, device):
                torch.autograd.backward(task.loss(model(x), y) / microbatches)
            optimizer.step()
            optimizer.zero_grad()

        return timed(step, steps, device)

    return fewest(attempt, settings.batch, optimizer.zero_grad)


def _slices(task: Task, step: int, microbatches: int, device: str) -> list[tuple[Tensor, Tensor]]:
    inputs, targets = (t.to(device) for t in task.data(step))
    return list(zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True))


def deepspeed(task: Task, settings: Settings, device: str, steps: int) -> dict[str, Any]:
    """ZeRO-3 with parameters and optimizer on the host; torch's Adam, since DeepSpeed's own one
    has to be compiled first."""
    if importlib.util.find_spec("deepspeed") is None:
        return {"status": "not installed"}
    if device != "cuda":
        return {"status": "needs a CUDA device"}
    engine_of = importlib.import_module("deepspeed").initialize

    def attempt(microbatches: int) -> dict[str, Any]:
        model = _model(task, settings)
        config = _zero3(settings, microbatches)
        engine, *_ = engine_of(model=model, model_parameters=model.parameters(), config=config)

        def step(number: int) -> None:
            for x, y in _slices(task, number, microbatches, device):
                engine.backward(task.loss(engine(x), y))
                engine.step()

        return timed(step, steps, device)

    return fewest(attempt, settings.batch, lambda: None)


def _zero3(settings: Settings, microbatches: int) -> dict[str, Any]:
    host = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": settings.batch // microbatches,
        "gradient_accumulation_steps": microbatches,
        "bf16": {"enabled": settings.precision != "fp32"},
        "zero_optimization": {"stage": 3, "offload_param": host, "offload_optimizer": host},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 30,
    }


PEERS: dict[str, Callable[[Task, Settings, str, int], dict[str, Any]]] = {
    "fsdp2": fsdp2,
    "deepspeed": deepspeed,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("size", choices=sorted(SIZES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--budget", type=int, required=True, metavar="BYTES")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args(arguments)
    os.environ |= {name: os.environ.get(name, value) for name, value in LOCAL.items()}
    if options.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        most = options.budget + options.budget // MARGIN
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / total))
    settings = Settings.read()
    task = models.bare(options.size, settings)
    found = PEERS[options.peer](task, settings, options.device, options.steps)
    print(json.dumps({"peer": options.peer} | found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
