"""Bytes and parts of a layer's backward, measured beside garbage and kernels that are not exact."""

import gc
import weakref
from typing import Any

import torch
from support.lab import LAB, WIDTH, rows, task
from torch import Tensor, nn

from executor.profiling.bench import Bench, Case
from executor.profiling.layer import no_garbage


class Circle:
    """Something that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_while_bytes_are_counted() -> None:
    """Garbage of before is gone, and what becomes garbage stays until the count is over: what an
    allocator counts would shrink in the middle of it."""
    before = weakref.ref(Circle())
    with no_garbage():
        assert before() is None
        meanwhile = weakref.ref(Circle())
        kept = [[number] for number in range(100_000)]
        assert meanwhile() is not None
    assert gc.isenabled()
    assert kept


class _Inexact(torch.autograd.Function):
    """A backward whose last bits are others each time, unless determinism is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.are_deterministic_algorithms_enabled():
            return grads[0]
        return grads[0] * (1 + 1e-6 * (1 + Noisy.calls.pop()))


class Noisy(nn.Module):
    calls = list(range(1000))

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(_Inexact.apply(x))
        return y


def test_a_backward_with_other_bits_each_time_is_still_one_of_two_parts() -> None:
    """As attention's is on CUDA: the parts are compared with the whole where it is exact."""
    x = rows(0)[0].requires_grad_()
    bench = Bench(Case(task(Noisy, rows, 1), Noisy(), x, None, False, len(x)), LAB.device)
    assert bench.splits
    assert not torch.are_deterministic_algorithms_enabled()
