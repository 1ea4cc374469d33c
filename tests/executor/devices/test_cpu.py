"""Emulated links last as long as real ones would, and those that share one take turns."""

import threading
import time

import pytest
import torch
from msgspec import structs

from executor.devices.device import Device as Face
from executor.devices.machine import open_devices
from executor.errors import UsageError
from plans.schema import Device
from profiles.schema import Emulation

BYTES, RATE = 1 << 16, 1 << 22  # 15.6 ms
SPEC = Device("cpu", "cpu", BYTES, 1, Emulation(RATE, 2 * RATE, 1000))
ALONE_S = BYTES / RATE + 0.001


def spent(devices: list[Face]) -> float:
    """Seconds that copies to all of these last, made at once."""
    source = torch.zeros(BYTES, dtype=torch.uint8)
    threads = [threading.Thread(target=d.copy_in, args=(d.slab, source)) for d in devices]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def test_a_copy_lasts_as_long_as_on_its_link() -> None:
    """Latency and bytes over rate, each direction at its own."""
    (device,) = open_devices([SPEC], [BYTES])
    assert spent([device]) >= ALONE_S
    host, times = torch.zeros(BYTES, dtype=torch.uint8), []
    for _ in range(5):
        start = time.perf_counter()
        device.copy_out(host, device.slab)
        times.append(time.perf_counter() - start)
    assert ALONE_S > min(times) >= BYTES / (2 * RATE) + 0.001


def test_devices_of_a_group_take_turns_on_their_link() -> None:
    """Three copies on one link last three times as long; on links of their own they do not."""
    group = [structs.replace(SPEC, link_group=7) for _ in range(3)]
    assert spent(open_devices(group, [BYTES] * 3)) >= 3 * BYTES / RATE
    apart = [structs.replace(SPEC, link_group=number) for number in range(3)]
    assert min(spent(open_devices(apart, [BYTES] * 3)) for _ in range(5)) < 3 * BYTES / RATE


def test_what_is_sent_to_another_device_has_a_link_of_its_own() -> None:
    """A send lasts as long as there, not as on the sixteen times slower one to the host; devices
    without such a link use that."""
    fast = structs.replace(SPEC, emulation=Emulation(RATE, RATE // 16, 1000, 1, RATE))
    same = structs.replace(SPEC, emulation=Emulation(RATE, RATE, 1000))
    one, other, joined = open_devices([fast, fast, same], [BYTES] * 3)
    one.slab.fill_(7)
    for device in (one, joined):
        start = time.perf_counter()
        device.send(other.slab, device.slab)
        assert time.perf_counter() - start >= ALONE_S
        assert torch.equal(other.slab, device.slab)
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        one.send(other.slab, one.slab)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 16 * BYTES / RATE


def test_devices_of_a_plan_draw_the_same_random_numbers() -> None:
    """A plan with both kinds of generators is refused before a device is opened."""
    other = structs.replace(SPEC, kind="cuda", emulation=None)
    with pytest.raises(UsageError, match="cpu and cuda devices"):
        open_devices([SPEC, other], [BYTES] * 2)
