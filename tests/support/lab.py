"""A place to measure single layers in: one CPU device without links, one sample."""

from executor.devices.cpu import CpuDevice
from executor.profiling.layer import Lab
from plans.schema import Device

DEVICE = CpuDevice(Device("cpu", "cpu", 1, 1), 0)
LAB = Lab(DEVICE, DEVICE.queue("compute"), load=1, samples=1)
