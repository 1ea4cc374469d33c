"""A tiny language model in fp64 for sequences of every length, plans that pack them, and loops
without Gantry that train it in the same steps."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from numpy.typing import NDArray
from support.fit import fit
from support.handmade import PLANS
from support.kinded import shorter
from support.retime import retimed
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload import Task, pack, padding, take
from plans import prove, samples
from plans.schema import Lengths, Plan, RoundKind
from plans.timing import Runs
from profiles.lengths import describe

VOCABULARY, WIDTH = 13, 8
MOST = 512  # tokens of a microbatch
SAMPLES, BATCH = 23, 5


class Block(nn.Module):
    """Causal attention within each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        hidden, positions, sequences = x
        q, k, v = self.inner(hidden).chunk(3, -1)
        seen = (sequences[:, None] == sequences) & (positions[:, None] >= positions)
        scores = (q @ k.t()).masked_fill(~seen, -torch.inf)
        return hidden + self.outer(scores.softmax(-1) @ v), positions, sequences


class First(nn.Module):
    """Embeds tokens and their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(MOST, WIDTH)

    def forward(self, x: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        tokens, positions, sequences = x
        return self.words(tokens) + self.places(positions), positions, sequences


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        out: Tensor = self.head(x[0])
        return out


class Text(nn.Module):
    """So many layers, each a module."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        ends = nn.Sequential(First(), Block()), nn.Sequential(Block(), Last())
        self.layers = nn.Sequential(ends[0], *(Block() for _ in range(layers - 2)), ends[1])
        self.double()

    def forward(self, tokens: Tensor, positions: Tensor, sequences: Tensor) -> Tensor:
        out: Tensor = self.layers((tokens, positions, sequences))
        return out


LENGTHS = (1 + np.random.default_rng(1).integers(0, 100, SAMPLES)).tolist()


def data(samples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Texts of the samples, whose targets are the next words."""
    made = []
    for n in samples:
        generator = torch.Generator().manual_seed(n)
        text = torch.randint(VOCABULARY, (LENGTHS[n] + 1,), generator=generator)
        made.append((text[:-1], text[1:]))
    return made


def text_task(layers: int, steps: int, **more: Any) -> Task:
    """The loss is the mean over the tokens of a step."""
    given: dict[str, Any] = {
        "loss": partial(F.cross_entropy, reduction="sum"),
        "optimizer": partial(AdamW, lr=1e-2),
        "lengths": LENGTHS,
        "batch": BATCH,
    }
    return Task(
        **{"name": "a", "model": partial(Text, layers), "data": data, "steps": steps, "seed": 2}
        | given
        | more
    )


_FOLDER, _COUNT = TemporaryDirectory(), count()


class Packed(NamedTuple):
    """A plan with its task, the table that it was made with, and the file that it would have."""

    plan: Plan
    task: Task
    rows: NDArray[np.uint16]
    path: Path


def with_rows(made: Packed, rows: NDArray[np.uint16]) -> Packed:
    """The plan with another table."""
    path = Path(_FOLDER.name) / f"{next(_COUNT)}.json"
    (task,) = made.plan.tasks
    assert task.lengths
    lengths = replace(task.lengths, table=samples.write(samples.table_path(path, "a"), [rows]))
    plan = replace(made.plan, tasks=(replace(task, lengths=lengths),))
    return Packed(plan, made.task, rows, path)


def packed(
    name: str, kinds: Sequence[Sequence[int]], runs: Runs, *, padded: bool = False, **more: Any
) -> Packed:
    """A handmade plan with these kinds of rounds, by the tokens of their microbatches, and these
    runs of them; samples go to microbatches at random, as far as there is room."""
    made, steps = PLANS[name](), sum(length for _, length in runs)
    layers = made.tasks[0].shards[-1].end_layer
    task = text_task(layers, steps, **more)
    most = made.tasks[0].microbatches
    (old,) = made.tasks
    like = padding(take(task, [0])[0], MOST * most)
    whole = Task(
        **{n: getattr(task, n) for n in ("name", "model", "loss", "optimizer", "steps")},
        data=lambda step: pack(task, [like]),
    )
    old = replace(old, microbatch=MOST, batch=MOST * most, precision=task.precision)
    made = fit(replace(made, tasks=(old,)), [whole], reserve=1 << 26)
    shapes = [kinds[kind] for kind, length in runs for _ in range(length)]
    rows = np.array([_row(step, shape, padded) for step, shape in enumerate(shapes)], "<u2")
    said = describe(task.lengths)
    lengths = Lengths(said.sha256, said.samples, "0" * 64, padded)
    (program,), (segment,), (planned,) = made.programs, made.segments, made.tasks
    first, *others = kinds
    program = replace(
        program,
        tokens=tuple(first),
        round=shorter(program.round, len(first)),
        kinds=tuple(RoundKind(tuple(t), 0, 0, shorter(program.round, len(t))) for t in others),
    )
    plan = replace(
        made,
        tasks=(replace(planned, steps=steps, batch=BATCH, lengths=lengths),),
        programs=(program,),
        segments=(replace(segment, rounds=steps, kinds=tuple(runs)),),
    )
    plan = retimed(plan)
    prove(plan)
    return with_rows(Packed(plan, task, rows, Path()), rows)


def samples_of(step: int) -> list[int]:
    return [(step * BATCH + j) % SAMPLES for j in range(BATCH)]


def _row(step: int, tokens: Sequence[int], padded: bool) -> list[int]:
    """Some microbatch that has room for it, for each sample of a step."""
    rng = np.random.default_rng(step)
    while True:
        row = rng.integers(0, len(tokens), BATCH).tolist()
        if all(_tokens(step, row, m, padded) <= most for m, most in enumerate(tokens)):
            return row


def _tokens(step: int, row: Sequence[int], m: int, padded: bool) -> int:
    own = [LENGTHS[n] for n, at in zip(samples_of(step), row, strict=True) if at == m]
    return len(own) * max(own, default=0) if padded else sum(own)


class Trained(NamedTuple):
    """val_losses: of evaluations, by the steps done."""

    losses: list[float]
    params: dict[str, Tensor]
    val_losses: dict[int, float]


Parts = Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]  # tokens, positions, sequences, targets


def trained(
    task: Task, parts_of: Callable[[int], Parts], judged: Callable[[], Parts] = tuple
) -> Trained:
    """An ordinary loop whose steps go through these parts, in turn, and its evaluations through
    those that are judged."""
    torch.manual_seed(task.seed)
    model = task.model()  # type: ignore[operator]
    optimizer = task.optimizer(list(model.parameters()))
    weights, losses = LENGTHS if task.weights is None else task.weights, []
    val_losses: dict[int, float] = {}
    assert task.loss
    for step in range(task.steps):
        total, whole = 0.0, sum(weights[n] for n in samples_of(step))
        for tokens, positions, sequences, targets in parts_of(step):
            loss = task.loss(model(tokens, positions, sequences), targets) / whole
            loss.backward()
            total += float(loss.detach())
        if task.clip:
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        if (own := task.evaluate) and (step + 1) % own.every == 0:
            whole, total = sum(own.lengths if own.weights is None else own.weights), 0.0
            for tokens, positions, sequences, targets in judged():
                with torch.no_grad():
                    out = model(tokens, positions, sequences)
                total += float(task.loss(out, targets) / whole)
            val_losses[step + 1] = total
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Trained(losses, params, val_losses)


def one_by_one(step: int) -> Parts:
    """Each sequence by itself, without any padding."""
    for text, targets in data(samples_of(step)):
        yield text, torch.arange(len(text)), torch.zeros(len(text), dtype=torch.long), targets


def as_packed(made: Packed, step: int) -> Parts:
    """The microbatches of a plan that pads nothing; of those without samples nothing is added."""
    row = made.rows[step].tolist()
    for m in range(max(row) + 1):
        own = [n for n, at in zip(samples_of(step), row, strict=True) if at == m]
        yield from joined(data(own))


def joined(samples: Sequence[tuple[Tensor, Tensor]]) -> Parts:
    """A microbatch of these samples; none where there are none."""
    if samples:
        texts, targets = zip(*samples, strict=True)
        sizes = [len(text) for text in texts]
        yield (
            torch.cat(texts),
            torch.cat([torch.arange(n) for n in sizes]),
            torch.cat([torch.full((n,), k) for k, n in enumerate(sizes)]),
            torch.cat(targets),
        )
