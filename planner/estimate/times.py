"""Times of kernels and updates on a GPU that nobody has measured, and the machine around it.

Of a kernel   launch + max(FLOPs / (peak x share), bytes / (bandwidth x share))
of a layer    forward, backward: the sum over its kernels; recompute_backward: both
of an update  bytes that the optimizer touches / (bandwidth x share), on device and host alike

Peaks, bandwidths and shares are those of `gpus`.
"""

from collections.abc import Iterable

from planner.estimate import gpus
from planner.estimate.gpus import Dtype, Gpu
from profiles import schema
from profiles.schema import Link, Rate, Time


def kernels_us(kernels: Iterable[tuple[int, int, bool]], dtype: Dtype, gpu: Gpu) -> float:
    """The time of kernels, each (FLOPs, bytes, whether it is fused attention), in a row."""
    products, bandwidth = gpu.matmul_flops(dtype), gpu.bytes_per_s * gpus.BANDWIDTH
    total = 0.0
    for flops, moved, attends in kernels:
        rate = products * (gpus.ATTENTION if attends else 1)
        total += gpus.LAUNCH_US + 1e6 * max(flops / rate, moved / bandwidth)
    return total


def update_times(numbers: int, moments: int, gpu: Gpu) -> tuple[Time, Time]:
    """An optimizer step of so many numbers on the device and on the host."""
    # Read the gradient, read and write parameter or master and moments, write the parameter:
    # 12 bytes and 8 for every moment, whether the parameter has 4 bytes or 2 beside its master.
    touched = numbers * (12 + 8 * moments)
    on_device = gpus.LAUNCH_US + touched / (gpu.bytes_per_s * gpus.BANDWIDTH) * 1e6
    on_host = touched / (gpu.host_bytes_per_s * gpus.HOST_BANDWIDTH) * 1e6
    return time_of(on_device), time_of(on_host)


def time_of(us: float) -> Time:
    """A time without spread, since nothing was measured."""
    whole = max(1, round(us))
    return Time(whole, whole, whole, 1)


def machine(
    gpu: Gpu, device_bytes: int | None, host_bytes: int | None, *, casts: bool
) -> schema.Machine:
    """The GPU in a typical host, with this much memory where it is said. casts: bf16 parameters
    from masters."""
    inside = gpu.bytes_per_s * gpus.BANDWIDTH / 2  # a copy reads and writes
    links = [*gpu.links, gpus.link("d2d", inside, inside)]
    if casts:  # six bytes of the host's memory move for each parameter of two
        per_s = gpu.host_bytes_per_s * gpus.CAST_BANDWIDTH / 3
        rate = Rate(round(per_s), round(gpus.CAST_PIECE / per_s * 1e6))
        links.append(Link("cast", rate, rate))
    memory = device_bytes or gpu.usable_bytes
    device = schema.Device(gpu.name, schema.GPU, memory, 1, tuple(links))
    host = schema.Host(host_bytes or gpu.host_bytes, gpu.host_cores, gpus.DISK)
    return schema.Machine((device,), host, 1)
