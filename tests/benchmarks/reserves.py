"""Plans of all kinds against the memory meter: no proven plan runs out of what it reserved.

    python -m tests.benchmarks.reserves [--plans 500] [--seed 0] [--only TEXT]

A case is one of 24 models as people write them, tiny, at some length, precision and number of
microbatches, in some layout and order, with some memory. Each plan that `build` makes and proves is
run for two rounds on emulated devices. Prints, by order and layout, how many plans ran, how many of
them split backwards in two, and the most that one took of its memory; then the cases that took more
than they had. Exits with 1 if there are any.
"""

import argparse
import os
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from support import architectures
from support.architectures import (
    BATCH,
    CLASSES,
    DECODER,
    ENDS,
    NAMES,
    NARROW,
    SIZES,
    WIDTH,
    Hugging,
    architecture,
    hugging,
    masked_tokens,
    series,
    task_of,
    tokens,
)
from support.quick import ROOM, measured, quickly
from support.searches import SHORT
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from executor import run
from executor.errors import RunError, WorkloadError
from executor.workload.task import Task
from planner import Infeasible, Problem, build
from planner.inputs.layout import OrderName, parse_layout
from plans import InvalidPlan
from plans.schema import Plan
from profiles import console
from profiles.schema import Layer, Precision, Profile

SMALL = SIZES | {"num_hidden_layers": 4, "intermediate_size": 4 * WIDTH}
MORE: dict[str, Hugging] = {
    "bloom": ("BloomForCausalLM", NARROW | ENDS | {"hidden_size": WIDTH, "n_layer": 4}, tokens),
    "gpt-neox": ("GPTNeoXForCausalLM", SMALL | ENDS, tokens),
    "phi": ("PhiForCausalLM", SMALL | ENDS, tokens),
    "mistral": ("MistralForCausalLM", DECODER, tokens),
    "roberta": ("RobertaForMaskedLM", SMALL | {"pad_token_id": 0}, masked_tokens),
    "electra": (
        "ElectraForMaskedLM",
        SMALL | {"embedding_size": WIDTH, "pad_token_id": 0},
        masked_tokens,
    ),
}


class _Doubled(torch.autograd.Function):
    """Somebody's own function, which might do anything with the gradients that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


class OneOdd(nn.Module):
    """Blocks of two kinds, of which one has a function of its own or a hook of torch's old kind."""

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(6)
        )
        self.odd, self.head = odd, nn.Linear(WIDTH, CLASSES)
        if odd == "hook":
            self.blocks[4].register_backward_hook(lambda module, given, gives: None)

    def forward(self, x: Tensor) -> Tensor:
        for n, block in enumerate(self.blocks):
            x = x + block(_Doubled.apply(x) if self.odd == "function" and n == 4 else x)
        y: Tensor = self.head(x.mean(1))
        return y


ODD = {"one-function": partial(OneOdd, "function"), "one-hook": partial(OneOdd, "hook")}


def task(name: str) -> Task:
    """The task of that name: one of `NAMES`, `MORE` or `ODD`."""
    if name in ODD:
        return task_of(name, ODD[name], series, F.cross_entropy, STEPS)
    if name in MORE:
        kind, settings, data = MORE[name]
        return task_of(name, partial(hugging, kind, **settings), data, None, STEPS)
    return architecture(name, STEPS)


LAYOUTS = ("1x1", "2x1", "2x1", "1x2", "2x2", "2x2", "1,3")
ORDERS: tuple[OrderName, ...] = (
    "gpipe",
    "1f1b",
    "breadth",
    "zero-bubble",
    "zero-bubble",
    "auto",
    "interleaved",
)
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp32", "fp32", "bf16", "bf16-autocast")
EACH = 4  # cases of a model and its size, which is profiled once
STEPS = 2


class Model(NamedTuple):
    """A model at some size. length: of a row of tokens; microbatches: of a batch."""

    name: str
    length: int
    precision: Precision
    microbatches: int
    clip: float | None

    @property
    def task(self) -> Task:
        return replace(task(self.name), precision=self.precision, clip=self.clip)

    def sized(self) -> AbstractContextManager[object]:
        """Its rows of tokens are of this length for a while."""
        return mock.patch.object(architectures, "LENGTH", self.length)


class Case(NamedTuple):
    """A plan to build and run. room: of a device, as a part of what the model takes in all."""

    model: Model
    layout: str
    order: OrderName
    room: float

    def __str__(self) -> str:
        one = self.model
        what = f"{one.name} length {one.length} {one.precision}{' clipped' if one.clip else ''}"
        how = f"{self.layout} {self.order}, {one.microbatches} microbatches, room {self.room:.2f}"
        return f"{what}, {how}"


def cases(seed: int) -> Iterator[Case]:
    """Any, without end; every so many are of one model, all of which come in turn."""
    rng, names = random.Random(seed), [*NAMES, *MORE, *ODD]
    while True:
        rng.shuffle(names)
        for name in names:
            counts = [n for n in range(1, BATCH + 1) if BATCH % n == 0]
            own = Model(
                name,
                rng.choice([8, 24]),
                rng.choice(PRECISIONS),
                rng.choice(counts),
                rng.choice([None, None, 0.1]),
            )
            for _ in range(EACH):
                layout = rng.choice(LAYOUTS)
                order: OrderName = rng.choice(ORDERS) if layout != "1x1" else "auto"
                yield Case(own, layout, order, 2 ** rng.uniform(-4, 1))


@lru_cache(maxsize=1)
def profile_of(model: Model) -> Profile | None:
    """The model's profile; None where it is refused."""
    with model.sized(), suppress(WorkloadError):
        return measured(model.task, model.microbatches)
    return None


def planned(case: Case) -> Plan | None:
    """The plan, with the least memory that will do where that of the case will not; None where
    there is none."""
    made = profile_of(case.model)
    if made is None:
        return None
    layout = parse_layout(case.layout)
    asked = Problem.of(made, devices=layout.devices, device_bytes=None, host_bytes=None)
    room = round(case.room * sum(map(_bytes, made.tasks[0].layers)))
    for _ in range(3):
        asked = asked.alike(device_bytes=min(room, ROOM))
        wanted = replace(asked, layout=layout, order=case.order)
        try:
            return build(wanted, profile_sha256="0" * 64, limits=SHORT)
        except Infeasible as error:
            if not error.smallest:
                return None
            room = error.smallest
    return None


def _bytes(layer: Layer) -> int:
    """The bytes of a layer's values and of a microbatch's graph."""
    held = layer.param_bytes + layer.grad_bytes + layer.state_bytes
    return held + layer.costs[-1].saved_bytes


class Outcome(NamedTuple):
    """A plan's run. split: some backwards are in two parts; used: the largest part of what it has
    of a device that it took; failure: why it ended, if it took more."""

    case: Case
    split: bool
    used: float
    failure: str


def outcome(case: Case) -> Outcome | None:
    """What became of the case; None where it has no plan."""
    plan = planned(case)
    if plan is None:
        return None
    split = any(".I" in op.id for program in plan.programs for op in program.round)
    with case.model.sized():
        try:
            done = run(plan, [case.model.task])
        except RunError as error:
            if "beside its buffers" not in str(error):
                raise
            return Outcome(case, split, 1.0, str(error))
    memory = plan.programs[0].memory
    pairs = zip(done.peak_bytes, memory, strict=False)
    used = max(peak / (m.slab_bytes + m.reserve_bytes) for peak, m in pairs)
    return Outcome(case, split, used, "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plans and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--plans", type=console.whole(1, 1 << 20), default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="cases whose description has this text")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with quickly(), tqdm(total=options.plans, unit="plan", file=sys.stderr) as bar:
        wanted = (case for case in cases(options.seed) if options.only in str(case))
        done = [*islice(_ran(wanted, bar), options.plans)]
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for one in done:
        rows.setdefault((one.case.order, one.case.layout), []).append(one)
    print("order        layout   plans  split failed  most of memory")
    for (order, layout), own in sorted(rows.items()):
        split, failed = sum(one.split for one in own), sum(bool(one.failure) for one in own)
        most = max(one.used for one in own)
        print(f"{order:12} {layout:7} {len(own):6} {split:6} {failed:6} {most:15.1%}")
    told = [f"{one.case}: {one.failure}" for one in done if one.failure]
    models = len({one.case.model.name for one in done})
    last = f"{len(done)} plans of {models} models, {len(told)} took more memory than they had"
    print(*told, last, sep="\n")
    return 1 if told else 0


def _ran(wanted: Iterable[Case], bar: "tqdm[None]") -> Iterator[Outcome]:
    """The outcomes of those that have a plan; of builds that end without a proof it is said why."""
    for case in wanted:
        try:
            made = outcome(case)
        except InvalidPlan as error:
            print(f"no plan: {case}: {' '.join(str(error).split())}")
            continue
        if made:
            yield made
            bar.update()


if __name__ == "__main__":
    sys.exit(main())
