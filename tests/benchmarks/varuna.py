"""A real run of a pipeline on hundreds of GPUs, predicted from its own times.

    python -m tests.benchmarks.varuna FILE [--json]

FILE has the mean times of every stage and what its replicas measured:

    runs        by name: micro_batches; by stage fwd_us, rec_us, bwd_us, host_gap_us of a
                microbatch, last_compute_end_s, and the waits recv_acts_s and recv_grads_s; replicas
                with pipeline_s_mean each; measured.mean_replica_pipeline_s
    simulator   send_us_assumed (short, long, gpus_per_vm), and Varuna's error_pct by run (jitter)

The pipeline part of an iteration is predicted in the order that the run had, by the planner's
simulator of what runs once. Exit code 1 if that is more than 5 % from the mean of the replicas.

What is assumed:
- The run's order comes from Varuna's rules for passes of equal length: a stage prefers backwards to
  recomputations to forwards, and recomputes while the stage behind does that backward. A stage
  recomputes before the gradient is there, and keeps its order, whatever comes late.
- The host gap is between a recomputation and its backward, where the run's log has it; in the last
  stage, which recomputes nothing, before the backward.
- Before its first forward the first stage did what its waits, passes and gaps leave of the time to
  the end of its last pass.
- Sends take the file's assumed times, the longer one between machines. Each boundary has a queue
  for either direction, and a send keeps no stage busy.

Then what other orders would take, with the same times, recomputing ahead as above or late, within
the backward; and a bound on all orders. And what uneven shares would gain: the slowest replica's
time if every replica got microbatches by its measured speed.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Any, Literal

from planner.orders import NAMED, Cost, Pipeline
from planner.rounds.timeline import once
from tests.benchmarks.published import Judged, compared

TOLERANCE = 0.05
ORDERS = ("1f1b", "gpipe")

Kind = Literal["F", "R", "B"]
Line = list[tuple[Kind, int]]
"""A stage's passes in turn: forward, recomputation or backward of a microbatch."""


@dataclass(frozen=True)
class Run:
    """Times of a pipeline in us, by stage; start: before the first stage's first pass; send: over
    the boundary behind each stage but the last."""

    microbatches: int
    passes: tuple[dict[Kind, int], ...]
    send: tuple[int, ...]
    start: int

    @classmethod
    def of(cls, run: dict[str, Any], sends: dict[str, int]) -> "Run":
        """From a file's means."""
        many, passes = run["micro_batches"], list[dict[Kind, int]]()
        names = ("fwd_us", "rec_us", "bwd_us", "host_gap_us")
        for forward, recompute, backward, gap in zip(*(run[name] for name in names), strict=True):
            if recompute:
                passes.append({"F": forward, "R": recompute + gap, "B": backward})
            else:
                passes.append({"F": forward, "B": backward + gap})
        waits = run["recv_acts_s"][0] + run["recv_grads_s"][0]
        left = round(1e6 * (run["last_compute_end_s"][0] - waits)) - many * sum(passes[0].values())
        crosses = (stage % sends["gpus_per_vm"] == 0 for stage in range(1, len(passes)))
        send = tuple(sends["long" if far else "short"] for far in crosses)
        return cls(many, tuple(passes), send, max(0, left))

    def ends(self, lines: Sequence[Line]) -> list[int]:
        """When each stage is done, with its passes in such an order."""
        last = len(lines) - 1
        computed = [[(stage, *item) for item in line] for stage, line in enumerate(lines)]
        sent = [[(s, "a", m) for k, m in lines[s] if k == "F"] for s in range(last)]
        sent += [[(s, "g", m) for k, m in lines[s + 1] if k == "B"] for s in range(last)]
        queues = [*computed, *sent]
        ops = [op for queue in queues for op in queue]
        number = {op: index for index, op in enumerate(ops)}

        def need(stage: int, kind: str, m: int) -> tuple[int, str, int] | None:
            if kind == "F":
                return (stage - 1, "a", m) if stage else None
            if kind == "B":
                return (stage, "g", m) if stage < last else (stage, "F", m)
            return {"a": (stage, "F", m), "g": (stage + 1, "B", m)}.get(kind)

        needs = [[number[source]] if (source := need(*op)) else [] for op in ops]
        us = [self.passes[s][k] if k in "FRB" else self.send[s] for s, k, _ in ops]
        starts = once(us, [[number[op] for op in queue] for queue in queues], needs)
        final = (number[queue[-1]] for queue in computed)
        return [self.start + starts[op] + us[op] for op in final]

    def recomputing_late(self) -> "Run":
        """With recomputations as parts of backwards, which wait for gradients."""
        late = [p | {"R": 0, "B": p.get("R", 0) + p["B"]} for p in self.passes]
        return replace(self, passes=tuple(late))

    def bound(self) -> int:
        """No order is done before: of every stage, the way of the first microbatch to it, all its
        passes, and the way of the last gradient back."""
        least, way = 0, self.start
        for stage, passes in enumerate(self.passes):
            least = max(least, way + self.microbatches * sum(passes.values()))
            if stage < len(self.send):
                way += passes["F"] + passes["B"] + 2 * self.send[stage]
        return least


def varuna(stages: int, microbatches: int) -> list[Line]:
    """Varuna's order: what its stages do step by step, if every pass takes a step and the backward
    another one (`"W"`), beside which the stage before recomputes."""
    waiting = [{kind: deque[int]() for kind in "WBRF"} for _ in range(stages)]
    waiting[0]["F"].extend(range(microbatches))
    lines: list[Line] = [[] for _ in range(stages)]
    while any(queue for own in waiting for queue in own.values()):
        step = [next((k for k in "WBRF" if own[k]), None) for own in waiting]
        done = [(s, k, waiting[s][k].popleft()) for s, k in enumerate(step) if k]
        for stage, kind, m in done:
            if kind == "F":
                lines[stage].append(("F", m))
                behind = stage + 1 < stages
                waiting[stage + behind]["F" if behind else "B"].append(m)
            elif kind == "R":
                lines[stage].append(("R", m))
                waiting[stage]["B"].append(m)
            elif kind == "B":
                lines[stage].append(("B", m))
                waiting[stage]["W"].append(m)
                if stage:
                    waiting[stage - 1]["R"].append(m)
    return lines


def named(run: Run, name: str) -> list[Line]:
    """An order of the planner's, each recomputation just before its backward."""
    costs = [Cost(p["F"], p.get("R", 0) + p["B"], 0) for p in run.passes]
    places = tuple((stage,) for stage in range(len(costs)))
    order = NAMED[name](Pipeline.alike(costs, len(costs), run.microbatches), places)
    lines: list[Line] = []
    for passes, items in zip(run.passes, order, strict=True):
        lines.append([])
        for item in items:
            if item.kind == "B" and "R" in passes:
                lines[-1].append(("R", item.microbatch))
            lines[-1].append(("F" if item.kind == "F" else "B", item.microbatch))
    return lines


@dataclass(frozen=True)
class Row(Judged):
    """A run: seconds predicted and measured, and what would be better.

    stage_errors: mean error of the ends of all stages. orders: seconds of other orders. shares:
    microbatches by replica, and the slowest replica's seconds now and then.
    """

    name: str
    ours: float
    measured: float
    error: float
    theirs: float
    bound: float
    gap: float
    stage_errors: float
    cpu_s: float
    orders: dict[str, float]
    shares: tuple[int, ...]
    slowest: float
    slowest_shared: float

    @property
    def short(self) -> bool:
        return abs(self.error) > TOLERANCE


def rows(data: dict[str, Any]) -> Iterator[Row]:
    """Every run of a file."""
    for key, measured in data.get("runs", {}).items():
        begun = time.process_time()
        run = Run.of(measured, data["simulator"]["send_us_assumed"])
        stages, many = len(run.passes), run.microbatches
        ends = run.ends(varuna(stages, many))
        spent = time.process_time() - begun
        ours, mean = max(ends) / 1e6, measured["measured"]["mean_replica_pipeline_s"]
        off = [
            1e-6 * end / seen
            for end, seen in zip(ends, measured["last_compute_end_s"], strict=True)
        ]
        within = run.recomputing_late()
        orders = {
            name + how: max(one.ends(named(run, name))) / 1e6
            for name in ORDERS
            for how, one in ((", recomputing ahead", run), (", recomputing late", within))
        }
        replicas = [replica["pipeline_s_mean"] for replica in measured["replicas"]]
        shares, shared = _shared(run, replicas)
        yield Row(
            f"{stages} stages, {many} microbatches",
            ours,
            mean,
            ours / mean - 1,
            data["simulator"]["error_pct"][key]["jitter"] / 100,
            run.bound() / 1e6,
            1 - run.bound() / max(ends),
            sum(abs(ratio - 1) for ratio in off) / stages,
            spent,
            orders,
            shares,
            max(replicas),
            shared,
        )


def _shared(run: Run, replicas: Sequence[float]) -> tuple[tuple[int, ...], float]:
    """Microbatches by replica as their speeds ask for, and the slowest replica's seconds.

    A replica that is slower by some percent is so with each microbatch and with all the rest.
    """
    stages, many = len(run.passes), run.microbatches
    few = many // 2
    fill, whole = (max(run.ends(varuna(stages, count))) for count in (few, many))
    each = (whole - fill) / (many - few)
    slower = [1e6 * seconds / whole for seconds in replicas]
    times = [(round(by * each), round(by * (whole - many * each))) for by in slower]
    queue = [(time + once, replica) for replica, (time, once) in enumerate(times)]
    heapify(queue)
    shares = [0] * len(replicas)
    for _ in range(many * len(replicas)):  # each to the replica that is done with it first
        us, replica = queue[0]
        shares[replica] += 1
        heapreplace(queue, (us + times[replica][0], replica))
    loads = [n * time + once for n, (time, once) in zip(shares, times, strict=True) if n]
    return tuple(shares), max(loads) / 1e6


def table(found: Iterable[Row]) -> Iterator[str]:
    """For people."""
    yield (
        "| run | ours s | measured s | error | of all stages' ends | Varuna's error | bound s "
        "| gap | cpu s |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for row in found:
        yield (
            f"| {row.name} | {row.ours:.2f} | {row.measured:.2f} | {row.error:+.1%} | "
            f"{row.stage_errors:.1%} | {row.theirs:+.1%} | {row.bound:.2f} | {row.gap:.1%} | "
            f"{row.cpu_s:.1f} |"
        )
        for name, seconds in row.orders.items():
            yield f"  {name}: {seconds:.2f} s, {seconds / row.ours - 1:+.1%}"
        yield (
            f"  shares {', '.join(map(str, row.shares))}: the slowest replica takes "
            f"{row.slowest_shared:.2f} s instead of {row.slowest:.2f}, "
            f"{row.slowest_shared / row.slowest - 1:+.1%}"
        )


def main() -> int:
    """Predict every run and compare."""
    return compared(__doc__, "runs of measured pipelines", rows, table)


if __name__ == "__main__":
    sys.exit(main())
