"""Models that are easily trained otherwise than they are, refused, or left whole: each unchanged,
from the profile to the run, with the bits of a plain loop that sets none of its flags either."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support import chains
from support.architectures import (
    BATCH,
    CLASSES,
    GPT2,
    T5,
    VOCABULARY,
    hugging,
    labelled_images,
    masked_tokens,
    pairs,
    tokens,
)
from support.chains import WIDTH
from support.cli import executor_cli, succeeded
from support.plain import train
from support.quick import least, measured, quickly
from support.same import assert_same
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.checkpoint import checkpoint

import profiles
from executor import run
from executor.cutting.chain import Chain, chain_of
from executor.errors import WorkloadError
from executor.profiling import task as task_profiler
from executor.profiling.layer_checks import batch
from executor.workload import load
from executor.workload.task import Task, build
from profiles.schema import Cut

pytestmark = pytest.mark.filterwarnings("default")  # transformers and torch have their own


@pytest.fixture(autouse=True)
def cheap() -> Iterator[None]:
    with quickly():
        yield


def task(make: Callable[[], nn.Module], data: Callable[[int], Any], loss: Any = None) -> Task:
    return Task("odd", make, data, loss, partial(AdamW, lr=1e-2, fused=True), 3, seed=5)


rows = partial(chains.rows, BATCH)


def words(step: int) -> tuple[Tensor, Tensor]:
    made = tokens(2 * step), tokens(2 * step + 1)
    return made[0]["labels"], made[1]["labels"]


SWITCH = T5 | {
    "num_decoder_layers": 2,
    "num_experts": 4,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1,
}
SWIN = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": WIDTH,
    "depths": [2, 1],
    "num_heads": [2, 4],
    "window_size": 4,
    "num_labels": CLASSES,
}


class Cached(nn.Module):
    """Keeps what its blocks make, as models do that will be asked for the next word, in an object
    that they hand on; and so computes other bits."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.blocks = nn.ModuleList(Keeping(number) for number in range(3))

    def forward(self, x: Tensor) -> Tensor:
        cache = transformers.DynamicCache() if self.config.use_cache else None
        for block in self.blocks:
            x = block(x, cache)
        return x


class Keeping(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Any) -> Tensor:
        y: Tensor = self.linear(x)
        if cache is not None:
            key = y[:, None, None]
            y = cache.update(key, key.bfloat16().float(), self.number)[1][:, 0, 0]
        return F.dropout(y, 0.1) + x


class Top1(nn.Module):
    """Sends each token to one expert, and leaves out those that get none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        made = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            own = torch.where(chosen == number)[0]
            if len(own):
                made = made.index_add(0, own, expert(flat[own]) * weight[own, None])
        return x + made.view_as(x)


class Words(nn.Module):
    """Experts between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.experts = Top1()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.experts(self.embedding(x))).transpose(1, 2)
        return logits


class Siamese(nn.Module):
    """One tower for both inputs."""

    def __init__(self) -> None:
        super().__init__()
        wide = 4 * WIDTH
        self.tower = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(WIDTH, wide), nn.GELU(), nn.Linear(wide, WIDTH))
                for _ in range(3)
            )
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.cosine_similarity(self.tower(a), self.tower(b))


def couples(step: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    return rows(step), chains.rows(BATCH, step, width=1)[0][:, 0]


class Checkpointed(nn.Module):
    """Runs its inside again in its backward, dropout and all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.GELU())
        self.settings = {"use_reentrant": False, **settings}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.inside, x, **self.settings)
        return y + x


def checkpointed(kind: str, **settings: Any) -> nn.Module:
    model = hugging(kind, **settings)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model


def in_a_row(**settings: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), *(Checkpointed(**settings) for _ in range(2)))


class Scored(nn.Module):
    """A table that is its head as well; its code may multiply by it before the first block."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early, self.table = early, nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        if self.early:
            h = F.linear(F.linear(h, self.table.weight), self.table.weight.t())
        for block in self.blocks:
            h = F.gelu(block(h))
        return F.linear(h, self.table.weight).transpose(1, 2)


GPT2_OF = {"kind": "GPT2LMHeadModel", **GPT2}

TASKS = {
    "padded, with a cache": replace(
        task(partial(hugging, **GPT2_OF), masked_tokens),
        weight=lambda batch: (batch["labels"][:, 1:] != -100).sum(),
    ),
    "a special cache": task(Cached, rows, F.mse_loss),
    "switch": task(partial(hugging, "SwitchTransformersForConditionalGeneration", **SWITCH), pairs),
    "swin": task(partial(hugging, "SwinForImageClassification", **SWIN), labelled_images),
    "experts": task(Words, words, F.cross_entropy),
    "reentrant": task(partial(checkpointed, **GPT2_OF), tokens),
    "its own checkpoints": task(in_a_row, rows, F.mse_loss),
    "a tied head, autocast": replace(
        task(partial(hugging, **GPT2_OF), tokens), precision="bf16-autocast"
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_bits_of_the_plain_loop(name: str) -> None:
    """It is cut at its modules into several layers, for any microbatch, and trained as it is."""
    profile = measured(TASKS[name], 2)
    plan = least(profile)
    assert_same(plan, [TASKS[name]], run(plan, [TASKS[name]]))
    assert len(plan.tasks[0].shards) >= 3
    cut = profile.tasks[0].cut
    assert cut is not None
    assert cut.how == ("sequential" if "its own" in name else "modules")
    assert cut.grows is not None


@pytest.mark.parametrize("early", [False, True])
def test_a_weight_is_cut_where_one_layer_casts_it(early: bool) -> None:
    """Under autocast those that cast a weight share its copy; who takes rows of it does not, also
    where a piece of the model holds the head beside its table."""
    made = task(partial(Scored, early), words, F.cross_entropy)
    profile = measured(replace(made, precision="bf16-autocast"), 1)
    assert bool(profile.tasks[0].tie_bytes[0]) is not early


def test_a_size_that_the_layers_are_not_made_for_is_named(monkeypatch: Any) -> None:
    """Where layers are for one microbatch size, both it and those asked for are told."""
    whole = Chain([nn.Linear(WIDTH, WIDTH)], Cut("graph", samples=BATCH, grows=None))
    monkeypatch.setattr(task_profiler, "chain_of", lambda *_, **__: whole)
    made = task(partial(nn.Linear, WIDTH, WIDTH), rows, F.mse_loss)
    with pytest.raises(
        WorkloadError, match=f"of {BATCH} samples only; asked for .* of {BATCH // 2}$"
    ):
        measured(made, 2)


def test_a_shared_tower_takes_what_was_planned() -> None:
    """Gradients of all that is used twice wait for the second use, and there is room for them."""
    made = task(Siamese, couples, F.mse_loss)
    plan = least(measured(made, 3))
    assert_same(plan, [made], run(plan, [made]))


def cut(made: Task) -> Chain:
    model, _ = build(made)
    return chain_of(model, batch(made).inputs, made.loss is not None)


def test_no_flag_of_the_model_is_touched() -> None:
    """Finding its layers leaves a config as the user has it."""
    made = TASKS["a special cache"]
    model, _ = build(made)
    assert chain_of(model, batch(made).inputs, True).how == "modules"
    assert model.config.use_cache  # type: ignore[union-attr]


def cached() -> list[Task]:
    return [TASKS["a special cache"]]


def test_without_a_cache_where_asked(tmp_path: Any) -> None:
    """The reference in the profile carries it, so that the run trains the same, with other bits."""
    options = ("--device-memory", "1MiB", "--devices", 1, "--samples", 1, "--no-cache")
    target = tmp_path / "profile.json"
    succeeded(executor_cli("profile", f"{__file__}:cached", *options, "-o", target))
    ref = profiles.load(target).tasks[0].workload.ref
    (made,), _ = load(ref)
    model, _ = build(made)
    assert not model.config.use_cache  # type: ignore[union-attr]
    plain = train(TASKS["a special cache"], 1)
    assert train(made, 1).losses != plain.losses


class Reading(Cached):
    """Reads what its blocks kept, and goes by it."""

    def forward(self, x: Tensor) -> Tensor:
        cache = transformers.DynamicCache()
        for block in self.blocks:
            x = block(x, cache)
        return x if cache.layers[0].keys.sum() > 0 else -x


def test_a_cache_that_matters_is_said() -> None:
    """Where a model that keeps one is left whole, the way out is named."""
    chain = cut(task(Reading, rows, F.mse_loss))
    assert chain.how == "whole"
    assert "--no-cache" in chain.why[-1]


def test_checkpointing_that_changes_bits_is_refused() -> None:
    """A recomputation with other random numbers, or whose gradients are added in another order,
    is not what a plan recomputes."""
    other = task(partial(in_a_row, preserve_rng_state=False), rows, F.mse_loss)
    with pytest.raises(WorkloadError, match="trains other bits with its checkpointing"):
        measured(other, 1)
    t5 = partial(checkpointed, "T5ForConditionalGeneration", **T5)
    with pytest.raises(WorkloadError, match="trains other bits with its checkpointing"):
        measured(task(t5, pairs), 1)


def explained() -> list[Task]:
    return [replace(TASKS[name], name=name.split()[0]) for name in ("reentrant", "swin")]


def test_what_is_left_out_is_explained() -> None:
    """`--explain` says so of the model that has checkpoints, and of no other."""
    told = succeeded(executor_cli("profile", f"{__file__}:explained", "--explain")).out
    first, other = told.split("\n\n")
    assert "checkpointing inside the model is left out" in first
    assert "checkpointing" not in other
