"""Packs of layers that spill, on a few GPUs: ours against Harmony's, by Harmony's own rule.

    python -m tests.benchmarks.harmony FILE [--below SECONDS] [--json]

FILE holds profiles of layers, constants and the makespans that Harmony's search found
(msr-fiddle/harmony):

    model       its `name`
    constants   bw_swap_bytes_per_s (of all GPUs together), bw_p2p_bytes_per_s, bw_msg_bytes_per_s,
                del_us_per_task, memory_cap_bytes, minibatch, gpus
    W_bytes, B_bytes, X_bytes_per_sample, upd_cpu_us
                of every layer its weights, its buffers, its input, and its update on the host
    fwd_us, bwd_us, mem_fwd_bytes, mem_bwd_bytes
                by microbatch size a list of all layers: times, a backward with its recomputation,
                and the most memory that the layer takes alone
    targets     by name (with "vDP": every GPU runs all packs; ending in "prefetch": copies run
                ahead) makespan_s, u_fwd, u_bwd (microbatch sizes), pack_fwd_ends, pack_bwd_ends
                (the layer behind each), and gpus, minibatch, memory_cap_bytes where these differ

First the rule (`tests/support/harmony_rule.py`) has to give those makespans for the packs that the
file names. Then packs are searched (`tests.support.packs`), with prefetch and on one GPU
after the other, and compared with the best of those that had as many GPUs and samples. The exit
code is 1 if the rule misses a makespan, or if ours is not below theirs, or not below SECONDS.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profiles import console
from profiles.units import show_bytes
from tests.support.harmony_bound import lower_bound
from tests.support.harmony_profile import Profile
from tests.support.harmony_rule import Schedule, simulate
from tests.support.packs import Packs, best_packs

STEPS = 120_000
OFF_US = 600  # the rule may be; times in a file are rounded, to µs per layer or ms per makespan


@dataclass(frozen=True)
class Published:
    """A makespan of the file, and what the rule gives for its packs."""

    name: str
    theirs_s: float
    rule_s: float

    @property
    def short(self) -> bool:
        return abs(self.rule_s - self.theirs_s) * 1e6 > OFF_US


@dataclass(frozen=True)
class Row:
    """Our packs of a model. theirs: the best makespan published, or the one asked to be beaten."""

    name: str
    ours_s: float
    theirs_s: float
    bound_s: float
    bound: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    forward_sizes: tuple[int, ...]
    backward_sizes: tuple[int, ...]
    cpu_s: float

    @property
    def gap(self) -> float:
        return 1 - self.bound_s / self.ours_s

    @property
    def short(self) -> bool:
        return self.ours_s >= self.theirs_s


def published(file: dict[str, Any]) -> list[Published]:
    """Every makespan of the file."""
    rules = []
    for name, target in file["targets"].items():
        profile, schedule = as_published(file, target, replicas="vDP" in name)
        us = simulate(profile, schedule, prefetch=name.endswith("prefetch"))
        rules.append(Published(name, target["makespan_s"], us / 1e6))
    return rules


def as_published(
    file: dict[str, Any], target: dict[str, Any], replicas: bool
) -> tuple[Profile, Schedule]:
    """The schedule that the file describes, and the profile with its GPUs and samples."""
    constants = file["constants"] | {key: target[key] for key in _KEYS if key in target}
    gpus = constants["gpus"]
    samples = constants["minibatch"] // gpus if replicas else constants["minibatch"]
    forward, backward = target["pack_fwd_ends"], target["pack_bwd_ends"]
    sizes = (_split(samples, target[key]) for key in ("u_fwd", "u_bwd"))
    turns = tuple(0 if replicas else at % gpus for at in range(len(forward + backward)))
    schedule = Schedule(tuple(forward), tuple(backward), *sizes, turns, replicas)
    return Profile(file | {"constants": constants}), schedule


_KEYS = ("gpus", "minibatch", "memory_cap_bytes")


def _split(samples: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, samples - done) for done in range(0, samples, size))


def alternate(packs: Packs, profile: Profile) -> Schedule:
    """The packs on one GPU after the other."""
    ends = [end for _, _, end in packs.runs(profile.layers)]
    forward, backward = ends[: len(packs.forward)], ends[len(packs.forward) :]
    turns = tuple(at % profile.gpus for at in range(len(ends)))
    sizes = packs.forward_sizes, packs.backward_sizes
    return Schedule(tuple(forward), tuple(reversed(backward)), *sizes, turns)


def solve(file: dict[str, Any], below: float | None) -> Row:
    """Search packs for the file's model, and bound them."""
    begun = time.process_time()
    profile = Profile(file)
    found = best_packs(
        profile.layers,
        profile.minibatch,
        profile.fits,
        lambda packs: simulate(profile, alternate(packs, profile)),
        steps=STEPS,
    )
    if found is None:
        cap = show_bytes(profile.cap)
        raise SystemExit(console.fail(f"a layer needs more than memory_cap_bytes, {cap}", 3))
    us, packs = found
    bound = lower_bound(profile)
    same = [t["makespan_s"] for t in file["targets"].values() if not set(_KEYS) & set(t)]
    theirs = below or min(same)
    spent = time.process_time() - begun
    name = file["model"]["name"]
    return Row(name, us / 1e6, theirs, bound.us / 1e6, bound.name, *packs, spent)


def main() -> int:
    """Check the rule, search, compare."""
    parser = console.Parser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=_read, metavar="FILE")
    parser.add_argument("--below", type=console.seconds, help="seconds to be beaten instead")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    args = parser.parse_args()
    if not args.below and all(set(_KEYS) & set(t) for t in args.file["targets"].values()):
        parser.error("the file has no makespan of these GPUs and samples; say --below SECONDS")
    rules = published(args.file)
    row = solve(args.file, args.below)
    if args.json:
        rows = {"rule": [asdict(rule) for rule in rules], "packs": asdict(row) | {"gap": row.gap}}
        print(json.dumps(rows, indent=1))
    else:
        _show(rules, row)
    return int(row.short or any(rule.short for rule in rules))


def _read(path: str) -> dict[str, Any]:
    try:
        file: dict[str, Any] = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None
    if missing := {"model", "constants", "targets", "W_bytes"} - set(file):
        raise argparse.ArgumentTypeError(f"{path}: {', '.join(sorted(missing))} missing")
    return file


def _show(rules: list[Published], row: Row) -> None:
    print("| published | theirs s | by the rule s |")
    print("| --- | ---: | ---: |")
    for rule in rules:
        off = " not reproduced!" * rule.short
        print(f"| {rule.name} | {rule.theirs_s:.6f} | {rule.rule_s:.6f} |{off}")
    print("\n| model | ours s | theirs s | bound s | gap | packs | microbatches | cpu s |")
    print("| --- | ---: | ---: | ---: | ---: | --- | --- | ---: |")
    sizes = (",".join(map(str, sizes)) for sizes in (row.forward_sizes, row.backward_sizes))
    print(
        f"| {row.name} | {row.ours_s:.3f} | {row.theirs_s:.3f} | {row.bound_s:.3f} {row.bound} | "
        f"{row.gap:.1%} | {len(row.forward)} + {len(row.backward)} | {' + '.join(sizes)} | "
        f"{row.cpu_s:.1f} |" + " not below!" * row.short
    )


if __name__ == "__main__":
    sys.exit(main())
