"""Plans of one large model on many devices: their gaps, and what planning and checking take.

    python -m tests.benchmarks.scale
    python -m tests.benchmarks.scale --model gpt-20b --layout 8x16 --batch 512

Run from the root of the repository. The models are estimated, not measured: GPT shapes of 20 and of
200 billion parameters in bf16 with AdamW, on A100s of 80 GB in nodes of eight, with links within a
node and a network between nodes of the rates given, in microbatches of one sample. Each plan is
built in a process of its own and proven in another, which say how much processor time and memory
they took; a build contains a check, which is taken off.

Each device has a process of its own, which reads all of the plan and takes from it what its device
does: "read" is what that takes, time and memory beside that of its modules.

Exits 1 where there is no plan, or building or checking takes more than 300 s of processor time or
more than 4 GB.
"""

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, TypeVar, get_args

from msgspec import structs

import plans
from executor.replay.sides import programs_of
from planner import Problem, build
from planner.estimate import Spec, estimate
from planner.estimate.models import MODELS, Model
from planner.inputs import Nodes, OrderName, on_nodes, parse_layout
from plans.part import Part
from profiles import console
from profiles.errors import GantryError
from profiles.schema import Link, Rate
from profiles.units import LARGEST, show_us

SECONDS, GB = 300, 4
GPU, STEPS, LATENCY = "a100-80", 100, 10
NODE = 8  # devices
HEAD = (
    "| devices | model | layout | batch | ops | period | gap | of layout | plan MB "
    "| built in s | peak GB | checked in s | peak GB "
    "| read in s | MB |\n"
    "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
    "| ---: | ---: | ---: | ---: | ---: | ---: |"
)
T = TypeVar("T")


def _gpt(name: str, blocks: int, width: int, heads: int) -> Model:
    return replace(
        MODELS["gpt3-13b"], name=name, blocks=blocks, width=width, heads=heads, ffn=4 * width
    )


SHAPES = {
    "gpt-20b": _gpt("gpt-20b", 44, 6144, 64),  # as GPT-NeoX (Black et al. 2022)
    "gpt-200b": _gpt("gpt-200b", 108, 12288, 96),  # GPT-3's layers (Brown et al. 2020), 12 more
}


@dataclass(frozen=True)
class Case:
    """A model on the devices of a layout, so many samples in a step."""

    model: str
    layout: str
    batch: int
    order: OrderName = "1f1b"


CASES = (
    Case("gpt-20b", "8x1", 32),
    Case("gpt-20b", "8x8", 256),
    Case("gpt-200b", "16x4", 128),
    Case("gpt-20b", "8x64", 2048),
    Case("gpt-20b", "8x128", 4096),
    Case("gpt-200b", "16x64", 2048),
)


@dataclass(frozen=True)
class Rates:
    """Bytes per second between devices of a node, and between nodes."""

    p2p: int
    net: int


@dataclass(frozen=True)
class Built:
    """A plan and what it took. layout_gap_ppm: to the bound of its stages and microbatches;
    seconds: of processor time, the check inside left out."""

    ops: int
    period_us: int
    gap_ppm: int
    layout_gap_ppm: int
    plan_bytes: int
    seconds: float
    gb: float


class Took(NamedTuple):
    """Seconds of processor time and GB that something took."""

    seconds: float
    gb: float


def problem(case: Case, rates: Rates) -> Problem:
    """The case on as few nodes as hold it."""
    spec = Spec(case.model, GPU, case.batch, microbatches=(1,), steps=STEPS)
    layout = parse_layout(case.layout)
    asked = Problem.of(
        estimate(spec, SHAPES), devices=layout.devices, device_bytes=None, host_bytes=LARGEST
    )
    told: dict[Literal["p2p", "net"], int] = {"p2p": rates.p2p, "net": rates.net}
    links = (Link(kind, Rate(rate, LATENCY), Rate(rate, LATENCY)) for kind, rate in told.items())
    device = structs.replace(asked.device, links=(*asked.device.links, *links))
    asked = replace(asked.alike(device=device), layout=layout, order=case.order)
    several = layout.devices > NODE
    return on_nodes(asked, Nodes(layout.devices // NODE, NODE)) if several else asked


def built(case: Case, rates: Rates, path: Path, limit: float) -> Built:
    """Plan the case into a file."""
    plan = build(problem(case, rates), profile_sha256="0" * 64, seconds=limit)
    spent = time.process_time()
    plans.save(path, plan)
    (program,), told = plan.programs, plan.prediction
    size, period = path.stat().st_size, program.period_us
    least = next(one.bound_us for one in plan.solver.alternatives if not one.why_not)
    return Built(
        ops=len(program.round),
        period_us=period,
        gap_ppm=told.gap_ppm,
        layout_gap_ppm=(period - least) * 1_000_000 // period,
        plan_bytes=size,
        seconds=spent,
        gb=_peak(),
    )


def read(path: Path) -> Took:
    """Read the plan as the process of its last device does."""
    before, begun = _peak(), time.process_time()
    plan = plans.load(path)
    ranks = range(len(plan.devices))
    programs_of(Part(plan, ranks, ranks[-1]))
    return Took(time.process_time() - begun, _peak() - before)


def checked(path: Path) -> Took:
    """Prove the plan of a file."""
    plan = plans.load(path)
    begun = time.process_time()
    plans.prove(plan)
    return Took(time.process_time() - begun, _peak())


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _apart(work: Callable[..., T], *arguments: object) -> T:
    """The result of a function that has a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


@dataclass(frozen=True)
class Row:
    """All of a case."""

    built: Built
    checked: Took
    read: Took

    @property
    def within(self) -> bool:
        seconds = max(self.built.seconds, self.checked.seconds)
        return seconds <= SECONDS and max(self.built.gb, self.checked.gb) <= GB


def measured(case: Case, rates: Rates, limit: float) -> Row:
    """One after the other."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        made = _apart(built, case, rates, path, limit)
        proven = _apart(checked, path)
        made = replace(made, seconds=made.seconds - proven.seconds)
        return Row(made, proven, _apart(read, path))


def _line(case: Case, row: Row) -> str:
    """A row for people."""
    made, proven = row.built, row.checked
    shown = (
        *(str(parse_layout(case.layout).devices), case.model, case.layout, str(case.batch)),
        *(f"{made.ops:,}", show_us(made.period_us)),
        *(f"{ppm / 1e4:.1f} %" for ppm in (made.gap_ppm, made.layout_gap_ppm)),
        f"{made.plan_bytes / 1e6:.2f}",
        *(f"{made.seconds:.1f}", f"{made.gb:.2f}", f"{proven.seconds:.1f}", f"{proven.gb:.2f}"),
        *(f"{row.read.seconds:.1f}", f"{row.read.gb * 1e3:.0f}"),
    )
    return "| " + " | ".join(shown) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", choices=SHAPES, help="one case instead, with --layout, --batch")
    parser.add_argument("--layout", type=console.typed(parse_layout))
    parser.add_argument("--batch", type=console.whole(1, 1 << 16))
    parser.add_argument("--order", choices=get_args(OrderName), default="1f1b")
    parser.add_argument("--p2p", type=console.rate, default=250 * 10**9, metavar="RATE")
    parser.add_argument("--net", type=console.rate, default=25 * 10**9, metavar="RATE")
    parser.add_argument("--time-limit", type=console.seconds, default=600.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    model, layout, batch = options.model, options.layout, options.batch
    if len({model is None, layout is None, batch is None}) > 1:
        parser.error("--model, --layout and --batch belong together")
    cases = [Case(model, str(layout), batch, options.order)] if model else CASES
    within = True
    print(HEAD)
    for case in cases:
        try:
            found = measured(case, Rates(options.p2p, options.net), options.time_limit)
        except GantryError as error:
            within = False
            print(f"| {case.model} | {case.layout} | {error} |", flush=True)
            continue
        within &= found.within
        print(_line(case, found), flush=True)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
