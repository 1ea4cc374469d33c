"""The rate and latency of bytes between process 0 and each other one, by torch.distributed.

    torchrun --nproc-per-node 2 tests/benchmarks/links.py
    torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:PORT tests/benchmarks/links.py

Between GPUs by NCCL, else by gloo. The rates are for `profile --p2p` and `build --net`.
"""

import os
from functools import partial

import torch
import torch.distributed as dist

from executor.profiling.links import measured

COUNTS, SAMPLES = (1 << 17, 8 << 20), 15


def there_and_back(flat: torch.Tensor, other: int, count: int) -> None:
    """Send so many bytes to a process, which sends them back."""
    turns = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
    for turn in turns:
        turn(flat[:count], other)
    if flat.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    where = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if where != "cpu" else "gloo")
    flat = torch.zeros(max(COUNTS), dtype=torch.uint8, device=where)
    for other in range(1, dist.get_world_size()):
        if dist.get_rank() in (0, other):
            partner = other if dist.get_rank() == 0 else 0
            twice = measured(partial(there_and_back, flat, partner), COUNTS, SAMPLES)
            if partner:
                print(f"0 - {other}: {2 * twice.bytes_per_s} B/s, {twice.latency_us // 2} us")
    dist.destroy_process_group()
