"""What an AdamW step on the host costs, with fp32 parameters and with bf16 ones and fp32 masters.

    python tests/benchmarks/host_optimizer.py [--parameters 8000000] [--threads 2] [--samples 5]

Printed are the median time of a step, parameters per second, and bytes per second of the memory
that a step has to touch at least: 28 per parameter, for fp32 parameters (p, g, m, v read, p, m, v
written) as for bf16 ones (g, master, m, v read, p, master, m, v written). Casts of their own touch
more, and are not credited for it. The last column is the time over that of one pass.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.optim import AdamW

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from executor.optim import onepass  # noqa: E402

BYTES_PER_PARAMETER = 28


def parameters(count: int) -> list[nn.Parameter]:
    """As a shard of a transformer has them: a few large ones and small ones between."""
    large = count // 4
    sizes = [size for _ in range(4) for size in (large - 1024, 1024)]
    return [nn.Parameter(torch.randn(size)) for size in sizes]


def fp32_step(count: int, fused: bool) -> Callable[[], None]:
    """Torch's own step on fp32 parameters."""
    values = parameters(count)
    for value in values:
        value.grad = torch.randn_like(value)
    optimizer = AdamW(values, fused=fused, foreach=False)
    return lambda: optimizer.step()


def bf16_step(count: int, one_pass: bool) -> Callable[[], None]:
    """A step of fp32 masters with bf16 gradients, to bf16 parameters."""
    masters: list[Tensor] = [*parameters(count)]
    params = [master.detach().bfloat16() for master in masters]
    grads = [torch.randn_like(param) for param in params]
    optimizer = AdamW(masters, fused=True)

    def run() -> None:
        if not one_pass:
            onepass.plain_step(optimizer, masters, params, grads, 1.0)
        elif not onepass.step(optimizer, masters, params, grads, 1.0):
            sys.exit("one pass declined the step")

    return run


def seconds(step: Callable[[], None], samples: int) -> float:
    """The median, after two steps of warm-up."""
    times = []
    for _ in range(samples + 2):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=8_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count = options.parameters
    rows: list[tuple[str, Callable[[], Callable[[], None]]]] = [
        ("fp32, for-loop AdamW", lambda: fp32_step(count, fused=False)),
        ("fp32, fused AdamW", lambda: fp32_step(count, fused=True)),
        ("bf16, casts and fused", lambda: bf16_step(count, one_pass=False)),
    ]
    if onepass.available():
        rows.append(("bf16, one pass", lambda: bf16_step(count, one_pass=True)))
    else:
        print(f"no one pass: {onepass.why_not()}", file=sys.stderr)
    taken = [(name, seconds(make(), options.samples)) for name, make in rows]
    print(f"{count} parameters, {options.threads} threads, median of {options.samples} steps")
    print(f"{'':24}{'ms':>9}{'Mparams/s':>12}{'GB/s':>8}{'ratio':>8}")
    for name, took in taken:
        rate = count / took
        print(
            f"{name:24}{took * 1e3:9.1f}{rate / 1e6:12.0f}"
            f"{rate * BYTES_PER_PARAMETER / 1e9:8.1f}{took / taken[-1][1]:8.2f}"
        )


if __name__ == "__main__":
    main()
