"""The memory meter counts what is born while it is active."""

import torch
import torch.nn.functional as F

from executor.numerics.meter import MemoryMeter
from executor.numerics.rng import RandomMode


def test_the_peak_is_of_what_lives_at_once() -> None:
    """Freed before the next is made: the peak is one tensor, not their sum."""
    with MemoryMeter() as meter:
        for _ in range(3):
            a = torch.empty(1000, dtype=torch.uint8)
            del a
    assert (meter.peak_bytes, meter.live_bytes) == (1000, 0)


def test_views_of_old_tensors_are_free() -> None:
    """Slices, in-place changes and copies into what existed before take nothing."""
    old = torch.zeros(1000)
    with MemoryMeter() as meter:
        old[10:20].add_(1)
        old.view(10, 100)[3].copy_(old[:100])
    assert meter.peak_bytes == 0


def test_a_storage_counts_once() -> None:
    """Views of a new tensor are not counted again, and keep it alive."""
    with MemoryMeter() as meter:
        a = torch.zeros(250)
        b = a.view(10, 25)[2]
        del a
        assert meter.live_bytes == 1000
        assert b.numel() == 25
    del b
    assert meter.live_bytes == 0


def test_backward_is_seen() -> None:
    """Gradients made in backward count, and so does what forward saved."""
    x = torch.ones(1000, requires_grad=True)
    with MemoryMeter() as meter:
        (x * 2).exp().sum().backward()
    assert meter.peak_bytes >= 2 * 4000
    assert meter.live_bytes == 4000  # x.grad


def test_together_with_random_numbers() -> None:
    """Under a mode for random numbers, their tensors count as well."""
    x = torch.ones(1000)
    state = torch.Generator().manual_seed(0).get_state()
    with MemoryMeter() as meter, RandomMode(state):
        F.dropout(x, 0.5)
    assert meter.peak_bytes >= 8000


def test_a_meter_goes_on_where_it_was_left() -> None:
    """Entered again, the peak begins at what is still alive; frees in between are seen."""
    meter = MemoryMeter()
    with meter:
        a, b = torch.empty(1000, dtype=torch.uint8), torch.empty(500, dtype=torch.uint8)
    del b
    with meter.restart():
        pass
    assert meter.peak_bytes == meter.live_bytes == 1000
    with meter.restart():
        del a
        torch.empty(300, dtype=torch.uint8)
    assert (meter.peak_bytes, meter.live_bytes) == (1000, 0)
