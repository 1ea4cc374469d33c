"""How long, and with how much memory, plans of 1 MB that are meant to hurt are refused.

    python -m tests.benchmarks.hostile_files [NAME ...]

Run from the root of the repository. Each is checked in a process of its own, which is ended past
a minute of processor time or 2 GB of address space.
"""

import multiprocessing
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import msgspec
from support.hostile import HOSTILE

import plans
from plans.checker.check import findings
from profiles.errors import FormatError

SECONDS, ADDRESSES = 60, 2 << 30


def refuse(name: str) -> None:
    """Check one plan and say what it took."""
    data = msgspec.json.encode(HOSTILE[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    begun = time.process_time()
    try:
        found = findings(plans.loads(data))
        count, listed = found.total, found.lines()
    except FormatError as error:
        count, listed = 1, [str(error)]
    took = time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kib = sum(map(len, listed)) >> 10
    print(
        f"{name:22} {len(data) >> 10:5} KiB {took:6.1f} s {before >> 10:4} -> {peak >> 10:4} MiB "
        f"{count:9} violations, {kib:3} KiB in {len(listed):3} lines: {''.join(listed[:1])[:70]}",
        flush=True,
    )


def main() -> None:
    for name in sys.argv[1:] or HOSTILE:
        process = multiprocessing.get_context("fork").Process(target=refuse, args=(name,))
        process.start()
        process.join()
        if process.exitcode:
            print(f"{name:22} ended with {process.exitcode}", flush=True)


if __name__ == "__main__":
    main()
