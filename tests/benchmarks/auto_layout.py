"""The layout and order that `build` chooses by itself, against all that could be given by hand.

    python -m tests.benchmarks.auto_layout --jobs 2
    python -m tests.benchmarks.auto_layout --only 'gpt2-xl*'

Run from the root of the repository. Models and GPUs are estimated, not measured. Each case is built
without --layout and --order, or with the layout that it has, and then once for every named order in
every layout: in all with equal replicas and, on up to four devices, in all others. Each build has a
process of its own; seconds are of its processor time.

Exit code 1 where the choice is more than 0.5 % longer than the best one by hand.
"""

import argparse
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import get_args

from planner import Infeasible, NoPlanFound, Problem, Spec, build, estimate_profile
from planner.inputs import Layout, OrderName, layouts, parse_layout
from profiles import console
from profiles.units import show_us

WORSE = 0.005
FEW = 4  # devices, on which uneven layouts are built by hand
HEAD = ("case", "auto", "layout", "order", "gap", "s", "by hand", "layout", "order", "auto/hand")
GIB = 1 << 30


@dataclass(frozen=True)
class Case:
    """A model on so many GPUs, with so much memory each. layout: the one that it is to have."""

    model: str
    gpu: str
    devices: int
    batch: int
    gib: float | None = None
    layout: str | None = None

    def __str__(self) -> str:
        parts = self.model, f"{self.devices}x{self.gpu}", f"b{self.batch}"
        memory = f"{self.gib:g}GiB" if self.gib else "all"
        return "/".join((*parts, memory, *([self.layout] if self.layout else [])))

    @property
    def problem(self) -> Problem:
        profile = estimate_profile(Spec(self.model, self.gpu, batch=self.batch))
        size = round(self.gib * GIB) if self.gib else None
        asked = Problem.of(profile, devices=self.devices, device_bytes=size, host_bytes=None)
        return replace(asked, layout=parse_layout(self.layout)) if self.layout else asked

    @property
    def layouts(self) -> list[Layout]:
        """Those that are built by hand, on all devices."""
        if self.layout:
            return [parse_layout(self.layout)]
        return [one for one in layouts(self.devices) if one.even or self.devices <= FEW]


CASES = (
    Case("llama-7b", "4090", 8, 16),
    Case("gpt2-xl", "4090", 4, 16, 8),
    Case("bert-large", "4090", 4, 32, 3, "1,1,2"),
    Case("gpt2-xl", "4090", 4, 16, 8, "1,1,2"),
    Case("bert-large", "1080ti", 2, 16, 2),
    Case("gpt2-large", "v100-16", 4, 16, 4),
    Case("vit-h", "1080ti", 2, 64, 3),
    Case("gpt2-medium", "v100-16", 3, 24, 3),
    Case("gpt3-xl", "4090", 4, 8, 6),
    Case("bert-large", "4090", 4, 32, 3),
    Case("vit-l", "4090", 4, 64, 2),
    Case("gpt3-2.7b", "a100-40", 2, 8),
    Case("gpt2", "k80", 2, 16, 3),
    Case("vit-l", "4090", 4, 64, layout="1x4"),
    Case("gpt2-large", "v100-16", 4, 16, 4, "1x4"),
)


@dataclass(frozen=True)
class Built:
    """A plan, or none: µs is 0. seconds: of processor time."""

    us: int = 0
    layout: str = ""
    order: str = ""
    gap: float = 0.0
    seconds: float = 0.0
    status: str = ""


def built(case: Case, layout: Layout | None, order: OrderName, limit: float) -> Built:
    """The case as it is asked for."""
    asked, begun = case.problem, time.process_time()
    asked = replace(asked, layout=layout or asked.layout, order=order)
    try:
        plan = build(asked, profile_sha256="0" * 64, seconds=limit)
    except (Infeasible, NoPlanFound):
        return Built(seconds=time.process_time() - begun)
    taken = next((one for one in plan.solver.alternatives if not one.why_not), None)
    return Built(
        plan.prediction.makespan_us,
        taken.layout if taken else "1x1",
        taken.order if taken else "-",
        plan.prediction.gap_ppm / 1e6,
        time.process_time() - begun,
        plan.solver.status,
    )


def _row(case: Case, auto: Built, hand: Built) -> tuple[str, ...]:
    late = "" if auto.status == "complete" else " (time)"
    ratio = f"{auto.us / hand.us:.4f}" if hand.us and auto.us else "-"
    shown = show_us(auto.us) if auto.us else "none"
    return (
        *(str(case), shown + late, auto.layout, auto.order, f"{auto.gap:.1%}"),
        *(f"{auto.seconds:.0f}", show_us(hand.us) if hand.us else "none"),
        *(hand.layout, hand.order, ratio),
    )


def _built(chosen: Sequence[Case], jobs: int, limit: float) -> Iterator[tuple[Case, Built, Built]]:
    """Each case as it is by itself, and the best one by hand."""
    names: list[OrderName] = [name for name in get_args(OrderName) if name != "auto"]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        every = []
        for case in chosen:
            auto = pool.submit(built, case, None, "auto", limit)
            hands = [
                pool.submit(built, case, layout, name, limit)
                for layout in case.layouts
                for name in names
            ]
            every.append((case, auto, hands))
        for case, auto, hands in every:
            found = [one for one in (hand.result() for hand in hands) if one.us]
            yield case, auto.result(), min(found, key=lambda one: one.us, default=Built())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases like this: gpt2-xl*")
    parser.add_argument("--jobs", type=console.whole(1, 64), default=1)
    parser.add_argument("--time-limit", type=console.seconds, default=60.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if fnmatch(str(case), options.only)]
    worst, rows = 0.0, [HEAD]
    for case, auto, hand in _built(chosen, options.jobs, options.time_limit):
        rows.append(_row(case, auto, hand))
        print("  ".join(rows[-1]), flush=True)
        if hand.us:
            worst = max(worst, auto.us / hand.us if auto.us else 2.0)
    print("\n".join(console.columns(rows)))
    return int(worst > 1 + WORSE)


if __name__ == "__main__":
    raise SystemExit(main())
