"""A model on a few GPUs: named orders, our placement of whole layers, and of some shared by two.

    python -m tests.benchmarks.roundpipe FILE [--replicas N] [--schedules N] [--json]

FILE has `settings`, one for each model, in ms: `layers` of them, which take `F` forward and `B`
backward for a microbatch, the head `headF` and `headB`, and a boundary between two GPUs `hop`.
`cuts` are the layers of each stage by order ("1f1b,gpipe"; several orders may share them); 1F1B has
a stage on each GPU. `makespan` has what RoundPipe's simulator gives for each order and for
"roundpipe"; `load_bound_ms` is all work over the GPUs, `whole_layer_bound_ms` the file's bound for
layers on one GPU each.

Named orders have to give the published makespans to 0.01 ms. Whole layers, each on one GPU, have to
come within 2 % of the file's bound for them. With up to N layers shared by a second GPU the
makespan is at most RoundPipe's own, whose weights move; a search may take 60 s of processor time.
The language-model head is a shard without a forward of its own. Exit code 1 if a row falls short.

bound: all work spread evenly, with the time until a GPU has its first input and after its last
gradient (a layer is the first of one GPU, a shared one of two); for whole layers also the file's.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planner.orders import (
    Cost,
    Order,
    Pipeline,
    Places,
    breadth,
    gpipe,
    makespan,
    one_forward_one_backward,
    placed,
)
from profiles import console

ABOVE = 1.02  # whole layers over their bound, at most
OFF_MS = 0.01
SECONDS = 60
ORDERS: dict[str, Callable[[Pipeline, Places], Order]] = {
    "1f1b": one_forward_one_backward,
    "interleaved-1f1b": one_forward_one_backward,
    "gpipe": gpipe,
    "looped-bfs": lambda pipeline, places: breadth(pipeline, places, descending=True),
}


@dataclass(frozen=True)
class Setting:
    """A model of the file, in ns."""

    name: str
    layers: int
    forward: int
    backward: int
    head_forward: int
    head_backward: int
    hop: int
    gpus: int
    microbatches: int
    cuts: dict[str, list[int]]
    theirs_ms: dict[str, float]
    whole_ms: float

    @classmethod
    def of(cls, name: str, read: dict[str, Any]) -> "Setting":
        """The file names microbatches only in words; its bound on the load tells them."""
        F, B, head_F, head_B, hop = (round(read[k] * 1e6) for k in _TIMES)
        cuts = {order: cut for orders, cut in read["cuts"].items() for order in orders.split(",")}
        gpus = len(cuts["1f1b"])
        each = read["layers"] * (2 * F + B) + head_F + head_B
        microbatches = round(read["load_bound_ms"] * 1e6 * gpus / each)
        theirs, whole = read["makespan"], read["whole_layer_bound_ms"]
        layers = read["layers"]
        return cls(name, layers, F, B, head_F, head_B, hop, gpus, microbatches, cuts, theirs, whole)

    def stages(self, cut: Sequence[int]) -> Pipeline:
        """Stages of so many layers; each is recomputed before its backward, but not the head."""
        costs = [
            Cost(n * self.forward, n * (self.forward + self.backward), 0, hop=self.hop) for n in cut
        ]
        forward, backward, *rest = costs[-1]
        costs[-1] = Cost(forward + self.head_forward, backward + self.head_backward, *rest)
        return Pipeline.alike(costs, self.gpus, self.microbatches)

    def shards(self) -> Pipeline:
        """Every layer for itself, then the head."""
        layer = Cost(self.forward, self.forward + self.backward, 0, hop=self.hop)
        head = Cost(0, self.head_forward + self.head_backward, 0, hop=self.hop)
        return Pipeline.alike([*[layer] * self.layers, head], self.gpus, self.microbatches)

    def least_ms(self, replicas: int) -> float:
        """The bound that the docstring of this file describes."""
        layer = 2 * self.forward + self.backward
        work = self.microbatches * (layer * self.layers + self.head_forward + self.head_backward)
        first = [s for s in range(self.layers) for _ in range(1 + (s < replicas))][: self.gpus]
        waits = sum(s * layer + 2 * self.hop * (s > 0) for s in first)
        return (work + waits) / self.gpus / 1e6


_TIMES = ("F", "B", "headF", "headB", "hop")


@dataclass(frozen=True)
class Row:
    """An order. least_ms, most_ms: what ours must be between; shared: layers on two GPUs."""

    model: str
    order: str
    ours_ms: float
    theirs_ms: float
    bound_ms: float
    least_ms: float
    most_ms: float
    shared: int
    cpu_s: float

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.bound_ms / self.ours_ms)  # the file's bounds are rounded

    @property
    def short(self) -> bool:
        return not self.least_ms <= self.ours_ms <= self.most_ms or self.cpu_s > SECONDS


def named(setting: Setting) -> Iterator[Row]:
    """Orders with names, stage k on GPU k modulo their number."""
    for name, order in ORDERS.items():
        begun = time.process_time()
        pipeline = setting.stages(setting.cuts[name])
        places = tuple((k % setting.gpus,) for k in range(pipeline.shards))
        ours = makespan(pipeline, order(pipeline, places)) / 1e6
        theirs, cpu = setting.theirs_ms[name], time.process_time() - begun
        bound = setting.least_ms(0)
        yield Row(setting.name, name, ours, theirs, bound, theirs - OFF_MS, theirs + OFF_MS, 0, cpu)


def searched(setting: Setting, replicas: int, schedules: int) -> Row:
    """Our placement, with up to so many layers on a second GPU."""
    begun = time.process_time()
    found = placed(setting.shards(), schedules, replicas=replicas)
    ours, cpu = found.makespan / 1e6, time.process_time() - begun
    shared = sum(len(set(row)) > 1 for row in found.rows)
    bound = setting.least_ms(replicas)
    if replicas:
        theirs = most = setting.theirs_ms["roundpipe"]
        name = "roundpipe, ours shared"
    else:
        bound = max(bound, setting.whole_ms)
        theirs, most = min(setting.theirs_ms[name] for name in ORDERS), ABOVE * setting.whole_ms
        name = "best of these, ours whole"
    return Row(setting.name, name, ours, theirs, bound, 0, most, shared, cpu)


def main() -> int:
    """A row per model and order."""
    parser = console.Parser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=_read, metavar="FILE")
    parser.add_argument(
        "--replicas", type=console.whole(1, 10_000), default=8, help="layers shared by two GPUs"
    )
    parser.add_argument(
        "--schedules", type=console.whole(10, 10**8), default=16_000, help="what a search may try"
    )
    parser.add_argument("--json", action="store_true", help="rows for scripts")
    args = parser.parse_args()
    rows = []
    for setting in args.file:
        rows += named(setting)
        rows += [searched(setting, n, args.schedules) for n in (0, args.replicas)]
    if args.json:
        print(json.dumps([asdict(r) | {"gap": r.gap, "short": r.short} for r in rows], indent=1))
    else:
        print("\n".join(_table(rows)))
    return int(any(row.short for row in rows))


def _read(path: str) -> list[Setting]:
    try:
        settings = json.loads(Path(path).read_text())["settings"]
        return [Setting.of(name, read) for name, read in settings.items()]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{path}: {error}") from None
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error} is missing") from None


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| model | order | ours ms | theirs ms | bound ms | gap | shared | cpu s |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in rows:
        yield (
            f"| {r.model} | {r.order} | {r.ours_ms:.3f} | {r.theirs_ms:.3f} | {r.bound_ms:.1f} | "
            f"{r.gap:.1%} | {r.shared} | {r.cpu_s:.1f} |" + " falls short!" * r.short
        )


if __name__ == "__main__":
    sys.exit(main())
