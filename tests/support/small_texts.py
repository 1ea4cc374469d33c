"""A small task whose samples have lengths. ENDS in the environment is a signal, a process by its
rank and a step: it gets the signal when it first asks for that step's samples, once."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

import profiles
from executor.workload import Task
from executor.workloads import documents
from profiles import lengths
from profiles.schema import Emulation

ROOM = 21 << 17
LONGEST, SAMPLES, BATCH, STEPS = 512, 60, 8, 7
LENGTHS = np.random.default_rng(0).integers(20, LONGEST + 1, SAMPLES).tolist()


def samples_of(step: int) -> list[int]:
    return [(step * BATCH + j) % SAMPLES for j in range(BATCH)]


def groups(row: Sequence[int], samples: Sequence[int]) -> list[list[int]]:
    """The samples of each microbatch of a row of a table."""
    pairs = list(zip(samples, row, strict=True))
    return [[n for n, at in pairs if at == m] for m in range(max(row) + 1)]


def data(samples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Made-up bytes, and the next ones."""
    number, rank, step = map(int, os.environ.get("ENDS", "0 -1 0").split())
    mine = int(os.environ.get("RANK", "0")) == rank
    first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if mine and first and set(samples) & set(samples_of(step)):
        del os.environ["ENDS"]
        os.kill(os.getpid(), number)
    made = []
    for n in samples:
        generator = torch.Generator().manual_seed(n)
        text = torch.randint(documents.BYTES, (LENGTHS[n] + 1,), generator=generator)
        made.append((text[:-1], text[1:]))
    return made


def profiled(folder: Path) -> Path:
    """x.json: the task's profile, with its lengths, on a device that holds a microbatch or two;
    every op takes the same time."""
    from support.steady import timeless

    from executor.profiling.profiler import Options, profile

    options = Options(device_bytes=ROOM, emulation=Emulation(10**9, 10**9, 5), samples=1)
    path = folder / "x.json"
    with timeless():
        profiles.save(path, profile(f"{__file__}:tasks", options))
    lengths.save(path, "t", LENGTHS)
    return path


def model() -> documents.Model:
    """With dropout in its blocks."""
    made = documents.Model(width=16, blocks=2, heads=2, longest=LONGEST)
    for block in made.blocks:
        block.mlp.append(nn.Dropout(0.1))  # type: ignore[union-attr,operator]
    return made


def tasks() -> list[Task]:
    return [
        Task(
            name="t",
            model=model,
            data=data,
            loss=documents.next_byte_loss,
            optimizer=partial(AdamW, lr=1e-2),
            steps=STEPS,
            lengths=LENGTHS,
            batch=BATCH,
            clip=0.5,
        )
    ]
