"""The two parts of a backward beside the whole one, for blocks of a transformer.

    python -m tests.benchmarks.halves [--threads 1] [--samples 9] [--json]

A row is a block of some width: median times (µs) of a forward, of B, I and W on a graph that is
there, and (I + W) / B; bytes of the graph and of what is left of it between I and W. Exit code 1 if
some block's parts do not give the bits of the whole.
"""

import argparse
import json
import sys

import torch
from torch import nn
from torch.optim import SGD

from executor.devices import CpuDevice
from executor.profiling.bench import Bench, Case
from executor.profiling.layer import Lab, layer_cost
from executor.workload import Task
from plans.schema import Device

SHAPES = ((64, 4, 32, 2), (256, 4, 128, 4), (512, 8, 256, 2))  # width, heads, length, sequences


def row(width: int, heads: int, length: int, sequences: int, lab: Lab) -> dict[str, object]:
    """The row of one block."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
    )
    task = Task("a", layer, lambda step: None, None, lambda ps: SGD(ps, lr=0.1), 1)
    x = torch.randn(sequences, length, width, requires_grad=True)
    case = Case(task, layer, x, None, first=False, microbatch=sequences)
    same = Bench(case, lab.device).splits
    cost = layer_cost(case, lab)
    first, second = cost.backward_input, cost.backward_weight
    parts = [time.median_us if time else None for time in (first, second)]
    both = sum(part or 0 for part in parts)
    return {
        "width": width,
        "tokens": length * sequences,
        "same": same,
        "F": cost.forward.median_us,
        "B": cost.backward.median_us,
        "I": parts[0],
        "W": parts[1],
        "(I+W)/B": round(both / cost.backward.median_us, 2),
        "graph": cost.saved_bytes,
        "left": cost.left_bytes,
    }


def main() -> int:
    """Print a row per block."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = CpuDevice(Device("cpu", "cpu", 1 << 30, options.threads), 0)
    lab = Lab(device, device.queue("compute"), load=1, samples=options.samples)
    rows = [row(*shape, lab) for shape in SHAPES]
    if options.json:
        print(json.dumps(rows))
    else:
        print(*(f"{name:>9}" for name in rows[0]))
        for one in rows:
            print(*(f"{value!s:>9}" for value in one.values()))
    return 0 if all(one["same"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
