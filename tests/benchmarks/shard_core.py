"""Shard ops of many chains on stateless devices: how near the timetable is to its bound.

    python -m tests.benchmarks.shard_core
    python -m tests.benchmarks.shard_core --devices 100 --tries 24

Run from the root of the repository. Two chains for every device, of 30 to 70 shard ops each (50 on
average), made from a seed: ops of a chain of about one length (10 % more or less between chains),
and of its copies too, which take 0.5 to 1.5 times the average part of it; ops of a chain differ
by `--uneven` percent (standard deviation, lognormal). Links are busy for 60 % of the bound where
every device has its own, and for 90 % where two share one.
"""

import argparse
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.chains import Chain, Fleet, bound_us
from planner.lines import TRIES, scheduled
from profiles import console

OP_US = 10_000
LOADS = {1: 0.6, 2: 0.9}  # of a link, by how many devices share it


@dataclass(frozen=True)
class Instance:
    """What to make: `uneven` is the spread of the ops of one chain."""

    devices: int
    sharers: int
    slots: int
    uneven: float
    seed: int = 0

    @property
    def name(self) -> str:
        link = "own links" if self.sharers == 1 else f"links shared by {self.sharers}"
        return (
            f"{self.devices} devices, {link} {LOADS[self.sharers]:.0%} busy, "
            f"ops ±{self.uneven:.0%}, {self.slots} slots"
        )

    @property
    def fleet(self) -> Fleet:
        return Fleet(self.devices, self.slots, self.sharers)


def chains(made: Instance) -> list[Chain]:
    """Two for every device; the same for the same instance, whatever its slots."""
    rng = np.random.default_rng(made.seed)
    drawn = []
    for _ in range(2 * made.devices):
        ops = int(rng.integers(30, 71))
        shard = OP_US * np.exp(rng.normal(0, 0.1)) * np.exp(rng.normal(0, made.uneven, ops))
        copies = shard * rng.uniform(0.5, 1.5) * np.exp(rng.normal(0, 0.1, ops))
        drawn.append((shard * np.exp(rng.normal(0, 0.1, ops)), copies))
    compute = sum(float(us.sum()) for us, _ in drawn)
    copied = sum(float(us.sum()) for _, us in drawn)
    part = LOADS[made.sharers] / made.sharers * compute / copied
    return [
        Chain(tuple(np.maximum(1, us).astype(int).tolist()), tuple((c * part).astype(int).tolist()))
        for us, c in drawn
    ]


def instances(devices: int, unevens: Sequence[float]) -> Iterator[Instance]:
    """Own and shared links, with two to four slots."""
    for uneven in unevens:
        for sharers in LOADS:
            for slots in (2, 3, 4):
                yield Instance(devices, sharers, slots, uneven)


def line(made: Instance, tries: int) -> str:
    """A row of the table."""
    asked = chains(made)
    begun, used = time.perf_counter(), time.process_time()
    found = scheduled(asked, made.fleet, tries)
    spent, used = time.perf_counter() - begun, time.process_time() - used
    least = bound_us(asked, made.fleet)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return (
        f"| {made.name} | {sum(len(one.compute_us) for one in asked)} | "
        f"{found.makespan_us / least - 1:.2%} | {spent:.1f} | {used:.1f} | {peak:.2f} |"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=console.whole(2, 100_000), default=1_000)
    parser.add_argument("--uneven", type=float, action="append", help="repeat it for several")
    parser.add_argument("--tries", type=console.whole(1, 10_000), default=TRIES)
    options = parser.parse_args(arguments)
    unevens = options.uneven or [10, 25]
    print("| instance | ops | over the bound | s | of processor time | peak GB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for made in instances(options.devices, [percent / 100 for percent in unevens]):
        print(line(made, options.tries), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
