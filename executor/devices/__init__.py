"""One face for the devices that a plan runs on: emulated ones and CUDA."""

from executor.devices.cpu import CpuDevice, Now
from executor.devices.device import (
    Device,
    Mark,
    Meter,
    Queue,
    QueueKind,
    aligned,
    apart,
    until,
    use_threads,
)
from executor.devices.gpu import describe, update_threads, usable
from executor.devices.hostmem import PIECE, HostMemory, host_memory, ring_bytes
from executor.devices.limits import cores, free_host_bytes
from executor.devices.machine import (
    apply,
    backend_of,
    default_source,
    expect_nodes,
    first_gpu,
    gpu_count,
    open_devices,
    sent_by,
)
from executor.devices.pace import least_us
