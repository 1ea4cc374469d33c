"""Where the gap is: small tasks, the shortest round that there is, the planner's and the bound.

    python -m tests.benchmarks.truth
    python -m tests.benchmarks.truth --only 'llama-13b-5/*'

Run from the root of the repository. Models with few blocks, so that they have 4 to 6 layers, at
shares of the memory that plain training takes and over links of 6 to 50 GB/s; adamw, one microbatch
to three. A row:

    bound     the phase bound
    optimum   the shortest round of all strategies: all cuts, blocks, and modes of whole shards (but
              for packing), each with the best order of its copies (`tests.support.exact`). What
              computes keeps its order, and bytes need not lie together. Known within 1/PART, or an
              interval where the nodes run out
    laid      the round of the optimum's strategy, as the planner lays it out
    kept      the best order of the plan's own strategy
    plan      the planner's round

Shares are of the plan: bound to optimum is the bound's to mend, optimum to plan the plan's.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from planner.bounds.task import phase_us
from planner.estimate.models import MODELS
from planner.estimate.profile import Spec, estimate
from planner.inputs.problem import Effort
from planner.lowering import DeviceRound, walked
from planner.rounds.slab import bytes_alive
from planner.search.round_bound import round_bound_us
from planner.search.task import Search
from planner.shards import Links, Mode, Place, Strategy, TaskCosts, microbatch_costs, modes_of
from profiles.schema import Rate, Task
from tests.benchmarks.instances import LATENCY_US, footprint
from tests.support.exact import Exact, Spent, shortest_us
from tests.support.strategies import Loads, describe

PART = 500  # of the optimum, that it is known within
_NODES, _EACH = 20_000, 1_000  # of the branch and bound, for a case and for a strategy
_SECONDS = 600.0  # for a search: none ends by time
_STREAMS = ("0.compute", "0.h2d", "0.d2h", "host.0")


@dataclass(frozen=True)
class Case:
    """A model with so few blocks that it has `layers`, in some memory, over a link."""

    model: str
    gpu: str
    layers: int
    microbatches: int
    memory_percent: int
    link_gb_per_s: int

    @property
    def name(self) -> str:
        place = f"mb{self.microbatches}/mem{self.memory_percent}/link{self.link_gb_per_s}"
        return f"{self.model}-{self.layers}/{place}"

    @property
    def task(self) -> Task:
        """With embedding and head, two samples a microbatch."""
        short = MODELS | {self.model: replace(MODELS[self.model], blocks=self.layers - 2)}
        spec = Spec(self.model, self.gpu, 2 * self.microbatches, microbatches=(2,))
        return estimate(spec, short).tasks[0]

    @property
    def links(self) -> Links:
        """Both ways alike; nothing is packed, since no rate for that is known."""
        rate = Rate(self.link_gb_per_s * 10**9, LATENCY_US)
        return Links(rate, rate, rate, rate)


CASES = (
    *(Case("gpt2-large", "4090", 5, 1, *grid) for grid in ((45, 6), (60, 16), (40, 50))),
    *(Case("llama-13b", "4090", 5, 1, *grid) for grid in ((40, 6), (60, 50))),
    *(Case("llama-13b", "4090", 4, 1, *grid) for grid in ((30, 6), (40, 16), (60, 25))),
    *(Case("gpt2-large", "4090", 4, 2, *grid) for grid in ((60, 6), (60, 16), (50, 50))),
    *(Case("llama-13b", "4090", 4, 3, *grid) for grid in ((40, 6), (40, 16), (60, 50))),
)


@dataclass(frozen=True)
class Row:
    """The times of a case in µs. least_us: none is below; optimum_us: the shortest found. laid_us:
    None where its strategy does not fit when it is laid out."""

    case: Case
    bound_us: int
    least_us: int
    optimum_us: int
    laid_us: int | None
    kept_us: int
    plan_us: int
    looked_at: int
    seconds: float
    optimum: str
    plan: str


@dataclass(frozen=True)
class Frame:
    """Cuts and a block, for which modes are looked for."""

    case: Case
    costs: TaskCosts
    cuts: tuple[int, ...]
    block: int

    @property
    def ways(self) -> list[list[Mode]]:
        """The modes that each shard may have."""
        last = len(self.cuts) - 2
        turn = self.block < last and self.costs.microbatches > 1
        shards = enumerate(self.costs.cut(self.cuts).shards)
        return [
            [
                mode
                for mode in modes_of(shard, Place(not k, k == last, turn and k >= self.block))
                if mode.activations != "offload"
            ]
            for k, shard in shards
        ]


def frames(case: Case) -> Iterator[Frame]:
    """All cuts and blocks of a case."""
    (costs,) = microbatch_costs(case.task)
    inner = range(1, len(costs.layers))
    for count in range(len(costs.layers)):
        for points in combinations(inner, count):
            cuts = (0, *points, len(costs.layers))
            for block in range(count + 1) if costs.microbatches > 1 else (count,):
                yield Frame(case, costs, cuts, block)


def strategies(
    frame: Frame, loads: Loads, device_bytes: int, below: int
) -> Iterator[tuple[int, Strategy]]:
    """All strategies of a frame that fit, and what their rounds take at least, which is `below` so
    many µs. Shard by shard, those that load a stream too much or are too large are left out."""
    ways = frame.ways
    plain = [own[0] for own in ways]
    each = [_each(frame, k, plain, own, loads) for k, own in enumerate(ways)]
    batch = loads.known.get(frame.costs.microbatch, {})
    chosen, alive = np.zeros((1, 0), int), np.zeros((1, each[0][1].shape[1]))
    busy = np.array([[batch.get(stream, 0) for stream in _STREAMS]], float)
    for k, (us, size) in enumerate(each):
        left = sum(other.min(axis=0) for other, _ in each[k + 1 :])
        busy = (busy[:, None] + us[None]).reshape(-1, busy.shape[1])
        alive = (alive[:, None] + size[None]).reshape(-1, alive.shape[1])
        more = np.tile(np.arange(len(us)), len(chosen))
        chosen = np.column_stack([np.repeat(chosen, len(us), 0), more])
        able = ((busy + left).max(axis=1) < below) & (alive.max(axis=1) <= device_bytes)
        busy, alive, chosen = busy[able], alive[able], chosen[able]
    for numbers, most in zip(chosen, alive.max(axis=1), strict=True):
        modes = tuple(own[n] for own, n in zip(ways, numbers, strict=True))
        one = Strategy(frame.costs, frame.cuts, modes, frame.block)
        if one.reserve_bytes + most <= device_bytes:
            least = round_bound_us(one, frame.case.links)
            if least < below:
                yield least, one


def _each(
    frame: Frame, k: int, plain: Sequence[Mode], own: Sequence[Mode], loads: Loads
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """By mode of a shard: µs that it adds to each stream, bytes that it adds at each step."""
    us, sizes = [], []
    for mode in own:
        one = Strategy(frame.costs, frame.cuts, (*plain[:k], mode, *plain[k + 1 :]), frame.block)
        walk, busy = walked(one), loads.of(one, k)
        mine = [v for v in walk.values[0] if v.number == k and v.role != "batch"]
        us.append([busy.get(stream, 0) for stream in _STREAMS])
        sizes.append(bytes_alive(mine, walk.lives.count[0]))
    return np.array(us, float), np.array(sizes, float)


def optimum(
    every: Sequence[tuple[int, Strategy]], links: Links, device_bytes: int, best: int
) -> tuple[int, int, Strategy | None, int]:
    """The least that any takes, the shortest found, whose it is (None where it is the `best` known
    before), and how many were looked at."""
    shortest, least, number, nodes = None, best, 0, iter(range(_NODES))
    for low, one in sorted(every, key=lambda item: item[0]):
        most = best - 1 - best // PART
        if low > most:
            break
        number += 1
        exact = Exact.of(one, links, device_bytes)
        try:
            found = shortest_us(exact, low - 1, most, PART, islice(nodes, _EACH))
        except Spent:
            least = min(least, low)
            continue
        if found:
            best, shortest = found, one
    return min(least, best - best // PART), best, shortest, number


def compare(case: Case) -> Row:
    """The times of a case."""
    task, links = case.task, case.links
    device_bytes = footprint(task) * case.memory_percent // 100
    effort = Effort(time.monotonic() + _SECONDS, 0)
    begun = time.process_time()
    plan = Search(task, links, device_bytes).best(effort)
    assert isinstance(plan.strategy, Strategy)
    period, own = plan.program.period_us, replace(plan.strategy, lumped=False)
    exact = Exact.of(own, links, device_bytes)
    kept = shortest_us(exact, 0, period, PART, iter(range(_NODES))) or period
    loads, every = Loads(links), list[tuple[int, Strategy]]()
    for frame in frames(case):
        every += strategies(frame, loads, device_bytes, kept)
    least, best, shortest, number = optimum(every, links, device_bytes, kept)
    laid = DeviceRound(shortest or own, links, device_bytes)
    return Row(
        case,
        phase_us(microbatch_costs(task), links, device_bytes, effort) or 0,
        least,
        best,
        laid.period_us if laid.device_bytes <= device_bytes else None,
        kept,
        period,
        number,
        time.process_time() - begun,
        describe(shortest or own),
        describe(own),
    )


def line(row: Row) -> str:
    """A case, by shares of the plan's period."""

    def share(us: int | None) -> str:
        return f"{us / row.plan_us:6.1%}" if us else "     -"

    best = share(row.optimum_us)
    if row.optimum_us - row.least_us > 2 * (1 + row.optimum_us // PART):
        best = f"{share(row.least_us)} to {best.strip()}"
    return (
        f"{row.case.name:32} plan {row.plan_us:>8} µs  bound {share(row.bound_us)}  "
        f"optimum {best}  "
        f"laid {share(row.laid_us)}  kept {share(row.kept_us)}  "
        f"{row.looked_at:>5} looked at, {row.seconds:5.1f} s"
    )


def figures(rows: Sequence[Row]) -> str:
    """How much of the gaps is the plan's, and how much the bound's."""
    plans = [1 - row.optimum_us / row.plan_us for row in rows]
    bounds = [(row.optimum_us - row.bound_us) / row.plan_us for row in rows]
    gaps = [1 - row.bound_us / row.plan_us for row in rows]
    return "; ".join(
        f"{name} median {statistics.median(own):.1%}, worst {max(own):.1%}"
        for name, own in (("gap", gaps), ("of it the plan's", plans), ("the bound's", bounds))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all cases, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names: llama-13b-5/*")
    options = parser.parse_args(arguments)
    rows = []
    for case in CASES:
        if fnmatch(case.name, options.only):
            rows.append(row := compare(case))
            print(f"{line(row)}\n    optimum {row.optimum}\n    plan    {row.plan}", flush=True)
    print(figures(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
