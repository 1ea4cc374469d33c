"""A tiny language model in fp64 for sequences of every length, plans that pack them, and loops
without Gantry that train it in the same steps."""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
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
from support.handmade import NOTED, PLANS, solo
from support.kinded import shorter
from support.parts import streamed_part
from support.plain import Loop
from support.retime import retimed
from torch import Tensor, nn
from torch.optim import AdamW

from executor.workload import Evaluation, Task, pack, padding, planned_shapes, take
from plans import prove, samples
from plans.schema import Lengths, Plan, RoundKind
from plans.timing import Runs
from profiles.lengths import describe, held_out

VOCABULARY, WIDTH = 13, 8
MOST = 512  # tokens of a microbatch
SAMPLES, BATCH = 23, 5


class Block(nn.Module):
    """Causal attention within each sequence; with dropout, of which all of it gets more or less in
    each forward, by one more random number."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        hidden, positions, sequences = x
        q, k, v = self.inner(hidden).chunk(3, -1)
        seen = (sequences[:, None] == sequences) & (positions[:, None] >= positions)
        scores = (q @ k.t()).masked_fill(~seen, -torch.inf)
        made = self.outer(scores.softmax(-1) @ v)
        if self.dropout and self.training:
            made = F.dropout(made, self.dropout) * torch.rand(1)
        return hidden + made, positions, sequences


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
        return self.head(x[0])


class Text(nn.Module):
    """So many layers, each a module."""

    def __init__(
        self, layers: int, dropout: float = 0.0, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        first, *inner, last = (Block(dropout) for _ in range(layers))
        ends = nn.Sequential(First(), first), nn.Sequential(last, Last())
        self.layers = nn.Sequential(ends[0], *inner, ends[1])
        self.to(dtype)

    def forward(self, tokens: Tensor, positions: Tensor, sequences: Tensor) -> Tensor:
        return self.layers((tokens, positions, sequences))


Texts = Callable[[Sequence[int]], list[tuple[Tensor, Tensor]]]

LENGTHS = (1 + np.random.default_rng(1).integers(0, 100, SAMPLES)).tolist()


def data(samples: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Texts of the samples, whose targets are the next words."""
    made = []
    for n in samples:
        generator = torch.Generator().manual_seed(n)
        text = torch.randint(VOCABULARY, (LENGTHS[n] + 1,), generator=generator)
        made.append((text[:-1], text[1:]))
    return made


def masked(samples: Sequence[int], texts: Texts = data) -> list[tuple[Tensor, Tensor]]:
    """The texts, in which some targets are left out: of every third sample all."""
    made = []
    for n, (text, targets) in zip(samples, texts(samples), strict=True):
        out = (torch.arange(len(text)) % 4 == 0) | (n % 3 == 0)
        made.append((text, targets.masked_fill(out, -100)))
    return made


def text_task(layers: int, steps: int, dropout: float = 0.0, **more: Any) -> Task:
    """The loss is the mean over the targets of a step."""
    given: dict[str, Any] = {
        "name": "a",
        "model": partial(Text, layers, dropout),
        "data": data,
        "loss": partial(F.cross_entropy, reduction="sum"),
        "optimizer": partial(AdamW, lr=1e-2),
        "lengths": LENGTHS,
        "batch": BATCH,
        "steps": steps,
        "seed": 2,
    }
    return Task(**given | more)


MADE = PLANS | NOTED | {"many": lambda: solo(streamed_part("a", microbatches=12))}
_COSTLY = ("name", "model", "loss", "optimizer", "steps", "precision", "clip")
_FOLDER, _COUNT = TemporaryDirectory(), count()


class Packed(NamedTuple):
    """A plan with its task, the microbatches of its steps' samples, and the file that it would
    have. order: the samples of each step, where they are not those that come in it."""

    plan: Plan
    task: Task
    rows: NDArray[np.uint16]
    path: Path
    order: Sequence[list[int]] = ()

    def of(self, step: int) -> list[int]:
        """The samples of a step."""
        return self.order[step] if self.order else samples_of(step)


def with_rows(
    made: Packed,
    rows: NDArray[np.uint16],
    window: int = 0,
    order: NDArray[np.uint32] | None = None,
) -> Packed:
    """The plan with another table, of samples that were reordered within such windows."""
    path = Path(_FOLDER.name) / f"{next(_COUNT)}.json"
    (task,) = made.plan.tasks
    assert task.lengths
    table = samples.write(samples.table_path(path, "a"), [rows], order)
    lengths = replace(task.lengths, table=table, reordered=window)
    if task.evaluation_lengths:
        name = held_out("a")
        samples.copy(samples.table_path(made.path, name), samples.table_path(path, name))
    plan = replace(made.plan, tasks=(replace(task, lengths=lengths),))
    return Packed(plan, made.task, rows, path)


def packed(
    name: str, kinds: Sequence[Sequence[int]], runs: Runs, *, padded: bool = False, **more: Any
) -> Packed:
    """A handmade plan with these kinds of rounds, by the tokens of their microbatches, and these
    runs of them; samples go to microbatches at random, as far as there is room."""
    made, steps = MADE[name](), sum(length for _, length in runs)
    task = text_task(made.tasks[0].shards[-1].end_layer, steps, **more)
    made = sized(made, task)
    (program,), (segment,) = made.programs, made.segments
    first, *others = kinds
    program = replace(
        program,
        tokens=tuple(first),
        round=shorter(program.round, len(first)),
        kinds=tuple(RoundKind(tuple(t), 0, 0, shorter(program.round, len(t))) for t in others),
    )
    segment = replace(segment, rounds=steps, kinds=tuple(runs))
    made = replace(made, programs=(program,), segments=(segment,))
    shapes = [kinds[kind] for kind, length in runs for _ in range(length)]
    return tabled(made, task, shapes, padded=padded)


def sized(plan: Plan, task: Task) -> Plan:
    """The plan with the bytes of this task, whose microbatches have MOST tokens."""
    (old,) = plan.tasks
    whole = MOST * old.microbatches
    like = padding(take(task, [0])[0], whole)
    given = Task(**{n: getattr(task, n) for n in _COSTLY}, data=lambda step: pack(task, [like]))
    old = replace(old, microbatch=MOST, batch=whole, precision=task.precision)
    return fit(replace(plan, tasks=(old,)), [given], reserve=1 << 26)


def tabled(
    plan: Plan, task: Task, shapes: Sequence[Sequence[int]], *, padded: bool = False
) -> Packed:
    """The proven plan with a table, for the tokens of the microbatches of each step."""
    rows = np.array(
        [_row(step, shape, padded, samples_of(step)) for step, shape in enumerate(shapes)], "<u2"
    )
    said, (planned,) = describe(task.lengths), plan.tasks
    each = tuple((shard.rng_draws or 0) // MOST for shard in planned.shards)
    lengths = Lengths(
        *(said.sha256, said.samples, "0" * 64), padded=padded, token_draws=each if any(each) else ()
    )
    planned = replace(planned, steps=len(shapes), batch=BATCH, lengths=lengths)
    plan = retimed(replace(plan, tasks=(planned,)))
    prove(plan)
    return with_rows(Packed(plan, task, rows, Path()), rows)


def moved(made: Packed, window: int) -> Packed:
    """The plan with samples that were reordered at random within windows."""
    rng, size = np.random.default_rng(1), window * BATCH
    parts = (np.arange(at, min(at + size, SAMPLES)) for at in range(0, SAMPLES, size))
    order = np.concatenate([rng.permutation(part) for part in parts]).astype(np.uint32)
    shapes = [shape for shape in planned_shapes(made.plan)["a"] for _ in range(shape.rounds)]
    steps = [order[samples_of(step)].tolist() for step in range(made.task.steps)]
    rows = np.array(
        [_row(n, shapes[n].tokens, False, own) for n, own in enumerate(steps)], np.uint16
    )
    return with_rows(made, rows, window, order)._replace(rows=rows, order=steps)


def samples_of(step: int) -> list[int]:
    return [(step * BATCH + j) % SAMPLES for j in range(BATCH)]


def _row(step: int, tokens: Sequence[int], padded: bool, of: Sequence[int]) -> list[int]:
    """Some microbatch that has room for it, for each sample of a step."""
    rng = np.random.default_rng(step)
    while True:
        row = rng.integers(0, len(tokens), BATCH).tolist()
        held = partial(_tokens, of, row, padded)
        if all(held(m) <= most for m, most in enumerate(tokens)):
            return row


def _tokens(of: Sequence[int], row: Sequence[int], padded: bool, m: int) -> int:
    own = [LENGTHS[n] for n, at in zip(of, row, strict=True) if at == m]
    return len(own) * max(own, default=0) if padded else sum(own)


class Trained(NamedTuple):
    """val_losses, metrics: of evaluations, by the steps done."""

    losses: list[float]
    params: dict[str, Tensor]
    val_losses: dict[int, float]
    metrics: dict[int, dict[str, float]]


Parts = Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]  # tokens, positions, sequences, targets


def trained(
    task: Task,
    parts_of: Callable[[int], Parts],
    of: Callable[[int], list[int]] = samples_of,
    judged: Callable[[], Parts] = tuple,
) -> Trained:
    """An ordinary loop whose steps go through these parts, in turn, and its evaluations through
    those that are judged. of: the samples of a step."""
    torch.manual_seed(task.seed)
    model = task.model()  # type: ignore[operator]
    loop, losses = Loop(task, model, None), []
    val_losses: dict[int, float] = {}
    metrics: dict[int, dict[str, float]] = {}
    assert task.loss
    for step in range(task.steps):
        total, whole = 0.0, _count(task, of(step))
        for *inputs, targets in parts_of(step):
            total += loop.add((tuple(inputs), targets), whole)
        loop.update()
        losses.append(total)
        if (own := task.evaluate) and (step + 1) % own.every == 0:
            whole, total = _count(own, range(len(own.lengths))), 0.0
            told: dict[str, list[float]] = {name: [] for name in own.metrics}
            model.eval()
            for tokens, positions, sequences, targets in judged():
                with torch.no_grad():
                    out = model(tokens, positions, sequences)
                total += float(task.loss(out, targets))
                for name, metric in own.metrics.items():
                    told[name] += metric(out, targets)[targets != -100].tolist()
            model.train()
            val_losses[step + 1] = total / whole
            means = {name: sum(map(Fraction, own)) / len(own) for name, own in told.items()}
            metrics[step + 1] = {name: float(mean) for name, mean in means.items()}
    params = {name: p.detach().clone() for name, p in model.named_parameters()}
    return Trained(losses, params, val_losses, metrics)


def _count(task: Task | Evaluation, samples: Sequence[int]) -> float:
    """By what the sum over these samples is divided."""
    if task.weights is not None:
        return float(sum(task.weights[n] for n in samples))
    return float(sum((targets != -100).sum() for _, targets in task.data(samples)))


def one_by_one(
    step: int, of: Callable[[int], list[int]] = samples_of, texts: Texts = data
) -> Parts:
    """Each sequence by itself, without any padding."""
    for text, targets in texts(of(step)):
        yield text, torch.arange(len(text)), torch.zeros(len(text), dtype=torch.long), targets


def as_packed(made: Packed, step: int) -> Parts:
    """The microbatches of a plan; of those without samples nothing is added."""
    row, (planned,) = made.rows[step].tolist(), made.plan.tasks
    assert planned.lengths
    for m in range(max(row) + 1):
        own = [n for n, at in zip(made.of(step), row, strict=True) if at == m]
        if own:
            most = max(LENGTHS[n] for n in own) if planned.lengths.padded else 0
            pieces = [
                piece
                for pair in made.task.data(own)
                for piece in (pair, _fill(most - len(pair[0])))
            ]
            yield from joined([pair for pair in pieces if len(pair[0])])


def _fill(tokens: int) -> tuple[Tensor, Tensor]:
    """Padding that no loss counts."""
    none = torch.zeros(max(0, tokens), dtype=torch.long)
    return none, none - 100


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
