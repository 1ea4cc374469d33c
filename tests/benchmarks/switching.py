"""Two mixes of pipelines in turn against one for all steps, by how long samples come in turn.

    python -m tests.benchmarks.switching [FILE] [--steps N] [--batch N] [--devices N] [--json]

FILE has `lengths`: tokens of documents, in order. Without it they are drawn: lognormal, sigma 1.
They are scaled, so that the longest has --longest tokens. A made-up model of eight layers is
trained on them, on emulated devices. An order is a row of the table for each memory: as given (any
step may have a long one), sorted (the longest last, as some curricula have it), and a phase (long
ones in the last quarter of the steps only). Memories are the least in which anything can be planned
and a twentieth more, and half as much again.

One: the best mix for all steps. Ours: what a plan has. Bounds: every sample by itself on all
devices; the best dispatch to the pipelines of our mixes. Exit code 1 if ours is longer than one
mix anywhere, or is not shorter by a hundredth in any phase.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner import Infeasible
from planner.bounds.lengths import compute_us, dispatch_us
from planner.inputs import Effort, Kind, default
from planner.packing.asked import Asked
from planner.sequences.choose import best
from planner.sequences.made import InTurn
from planner.sequences.switching import switched
from profiles import console
from profiles.units import show_bytes, show_us

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import synthetic
from support.texts import text_task

LAYERS, PARAMS = 8, 1 << 20
FORMULA = (2_000_000, 3_000_000, 50_000)  # of a layer's forward: square_fs, linear_ps, fixed_ns
MEMORIES = (1.05, 1.5)  # times the least
PHASE = 0.25  # of the steps, at the end
WORTH = 0.99  # of the time with one mix

Lengths = NDArray[np.uint32]


@dataclass(frozen=True)
class Row:
    """An order of samples with so much memory; times in µs, of all steps."""

    order: str
    memory: int
    one: str
    one_us: int
    ours: str
    segments: int
    ours_us: int
    dispatch_us: int
    compute_us: int
    cpu_s: float

    @property
    def ratio(self) -> float:
        return self.ours_us / self.one_us

    @property
    def gap(self) -> float:
        """The gap to the dispatch bound."""
        return 1 - self.dispatch_us / self.ours_us


def documents(file: Path | None, longest: int, count: int) -> Lengths:
    """The lengths of so many."""
    if file:
        given = np.array(json.loads(file.read_text())["lengths"])
    else:
        given = np.random.default_rng(0).lognormal(0.0, 1.0, count)
    own = np.resize(given, count)
    return np.maximum(16, own * longest / own.max()).astype(np.uint32)


def orders(given: Lengths, batch: int) -> dict[str, Lengths]:
    """The same samples in several orders."""
    many = max(1, round(PHASE * len(given) / batch)) * batch
    last = np.argsort(given, kind="stable")[-many // 4 :]  # a quarter of the last phase is long
    rest = np.setdiff1d(np.arange(len(given)), last)
    end = np.random.default_rng(0).permutation(np.concatenate([rest[len(given) - many :], last]))
    phase = np.concatenate([rest[: len(given) - many], end])
    return {"as given": given, "sorted": np.sort(given), "phase": given[phase]}


def asked(lengths: Lengths, batch: int, devices: int, room: int) -> Asked:
    """A task with these samples in turn."""
    steps = len(lengths) // batch
    task = text_task(
        layers=LAYERS,
        formula=FORMULA,
        lengths=lengths,
        batch=batch,
        steps=steps,
        param_bytes=PARAMS,
    )
    kind = Kind.of("cpu", synthetic.profile(task, usable_bytes=room), devices, None)
    return Asked(task, lengths, kind, 1 << 40, devices=devices)


def memories(lengths: Lengths, batch: int, devices: int) -> list[int]:
    """The memories of the rows."""
    try:
        best(asked(lengths, batch, devices, 1 << 16), 1, _effort())
    except Infeasible as error:
        return [int(error.smallest * times) for times in MEMORIES]
    raise AssertionError("64 KiB hold the task")


def _effort() -> Effort:
    return Effort(time.monotonic() + 300, 0, default())


def row(order: str, one: Asked) -> Row:
    """Plan it, with one mix and with two."""
    begun, effort = time.process_time(), _effort()
    found = best(one, 1, effort)
    ours = switched(one, found, 1, effort)
    spent = time.process_time() - begun
    return Row(
        order,
        one.kind.device_bytes,
        str(found.made.trial.way.layout),
        InTurn([found.made]).us,
        ", ".join(f"{way.trial.way.layout} for {way.steps}" for way in ours.ways),
        len(ours.parts),
        ours.us,
        dispatch_us(one, ours.pools),
        compute_us(one, one.devices),
        round(spent, 1),
    )


def rows(given: Lengths, batch: int, devices: int) -> Iterator[Row]:
    """All orders with each memory."""
    for room in memories(given, batch, devices):
        for order, lengths in orders(given, batch).items():
            yield row(order, asked(lengths, batch, devices, room))


def table(found: Sequence[Row]) -> str:
    head = ("order", "memory", "one mix", "takes", "ours", "segments", "takes", "over one")
    head += ("dispatch", "gap", "compute", "cpu")
    lines = [
        (
            one.order,
            show_bytes(one.memory),
            one.one,
            show_us(one.one_us),
            one.ours,
            str(one.segments),
            show_us(one.ours_us),
            f"{one.ratio:.3f}",
            show_us(one.dispatch_us),
            f"{one.gap:.1%}",
            show_us(one.compute_us),
            f"{one.cpu_s:.1f} s",
        )
        for one in found
    ]
    return "\n".join(console.columns([head, *lines]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="with `lengths`")
    parser.add_argument("--steps", type=int, default=40, metavar="N")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="samples of a step")
    parser.add_argument("--devices", type=int, default=4, metavar="N")
    parser.add_argument("--longest", type=int, default=4096, metavar="TOKENS")
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    chosen = parser.parse_args(arguments)
    given = documents(chosen.file, chosen.longest, chosen.steps * chosen.batch)
    found = list(rows(given, chosen.batch, chosen.devices))
    if chosen.json:
        told = [asdict(one) | {"ratio": one.ratio, "gap": one.gap} for one in found]
        print(json.dumps(told, indent=1))
    else:
        print(table(found))
    short = any(one.ratio > 1 for one in found)
    return int(short or min(one.ratio for one in found if one.order == "phase") > WORTH)


if __name__ == "__main__":
    sys.exit(main())
