"""Emulated links last as long as real ones would, and those that share one take turns."""

from unittest import mock

import pytest
import torch
from msgspec import structs
from support.clock import Clock

from executor.devices import cpu
from executor.devices.device import Device as Face
from executor.devices.machine import open_devices
from executor.errors import UsageError
from plans.schema import Device
from profiles.schema import Emulation

BYTES, RATE = 1 << 16, 1 << 22
LATENCY_S = 0.001
SPEC = Device("cpu", "cpu", BYTES, 1, Emulation(RATE, 2 * RATE, 1000))
ALONE_S = BYTES / RATE + LATENCY_S


def at_once(devices: list[Face], clock: Clock) -> list[float]:
    """Seconds until each of these has a copy that all are given in one moment."""
    ends: list[float] = []
    with mock.patch.object(cpu, "wait_until", ends.append):
        for device in devices:
            device.copy_in(device.slab, torch.zeros(BYTES, dtype=torch.uint8))
    return [end - clock.now for end in ends]


def test_a_copy_lasts_as_long_as_on_its_link(clock: Clock) -> None:
    """Latency and bytes over rate, each direction at its own."""
    (device,) = open_devices([SPEC], [BYTES])
    host = torch.zeros(BYTES, dtype=torch.uint8)
    device.copy_in(device.slab, host)
    assert clock.passed() == pytest.approx(ALONE_S)
    device.copy_out(host, device.slab)
    assert clock.passed() == pytest.approx(BYTES / (2 * RATE) + LATENCY_S)


def test_what_is_sent_to_another_device_has_a_link_of_its_own(clock: Clock) -> None:
    """A send lasts as long as there, not as on the sixteen times slower one to the host; devices
    without such a link use that."""
    fast = structs.replace(SPEC, emulation=Emulation(RATE, RATE // 16, 1000, 1, RATE))
    same = structs.replace(SPEC, emulation=Emulation(RATE, RATE, 1000))
    one, other, joined = open_devices([fast, fast, same], [BYTES] * 3)
    one.slab.fill_(7)
    for device in (one, joined):
        device.send(other.slab, device.slab)
        assert clock.passed() == pytest.approx(ALONE_S)
        assert torch.equal(other.slab, device.slab)


def test_devices_of_a_plan_draw_the_same_random_numbers() -> None:
    """A plan with both kinds of generators is refused before a device is opened."""
    other = structs.replace(SPEC, kind="cuda", emulation=None)
    with pytest.raises(UsageError, match="cpu and cuda devices"):
        open_devices([SPEC, other], [BYTES] * 2)
