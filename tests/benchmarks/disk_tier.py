"""Tasks that wait on the disk: how much longer 12 of them take with a third of the host memory.

    python -m tests.benchmarks.disk_tier

Run from the root of the repository. Estimated, not measured: 12 GPT-2 XL of context 512, an epoch
each (fp32, plain SGD) on V100s of 16 GB, with host memory for all of them, and for a third.
"""

import time
from dataclasses import replace

from planner.builder import build
from planner.storage.host_store import housed
from profiles import console
from profiles.schema import Disk, Rate
from profiles.units import show_bytes, show_us
from tests.benchmarks.many_tasks import workload
from tests.support.stores import stores_of

GB = 10**9
DISKS = {"NVMe, 3 and 2 GB/s": (3 * GB, 2 * GB), "SATA, 0.5 GB/s": (GB // 2, GB // 2)}
GPUS = (2, 4, 8)
SECONDS = 300.0


def main() -> None:
    """Print the table: of each plan what becomes of it on a host with less memory."""
    rows = [("GPUs", "disk", "host store", "makespan", "longer", "reads, writes", "found in")]
    for count in GPUS:
        asked = workload("w1").alike(count=count)
        roomy = build(asked, profile_sha256="0" * 64, seconds=SECONDS)
        us = roomy.prediction.makespan_us
        rows.append((str(count), "-", show_bytes(roomy.host.bytes), show_us(us), *[""] * 3))
        for name, (read, write) in DISKS.items():
            room, disk = roomy.host.bytes // 3, Disk(1 << 45, Rate(read, 0), Rate(write, 0))
            begun = time.monotonic()
            plan = housed(
                replace(asked, host_bytes=room, disk=disk), roomy, stores_of(roomy), gather=True
            )
            seconds = time.monotonic() - begun
            last = max(segment.end_us for segment in plan.segments)
            moves = [len([s for s in plan.segments if s.read_us is not None])]
            moves.append(len([s for s in plan.segments if s.write_us is not None]))
            times = show_us(last), f"{last / us - 1:.2%}"
            more = ", ".join(map(str, moves)), f"{seconds:.1f} s"
            rows.append((str(count), name, show_bytes(plan.host.bytes), *times, *more))
    print("\n".join(console.columns(rows)))


if __name__ == "__main__":
    main()
