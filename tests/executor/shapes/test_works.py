"""Works by their shapes alone, against formulas and against what the profiler measures."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import transformers as plain
from support.cli import planner_cli, profile, refused, succeeded
from support.imports import ROOT
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import profiles
from executor import Task
from executor.shapes import works_of
from executor.shapes.works import _seen
from planner.estimate import Spec, estimate, estimate_own
from planner.estimate.kernels import Size
from planner.estimate.layers import chain
from planner.estimate.models import Family, Model
from profiles.errors import FormatError

WIDTH, HEADS, WORDS, TOKENS, BATCH = 64, 4, 1000, 128, 4
HERE = Path(__file__)


def known(family: Family) -> Model:
    wide, learned = (172, 0) if family == "llama" else (4 * WIDTH, TOKENS)
    return Model("x", family, 2, WIDTH, HEADS, wide, TOKENS, vocabulary=WORDS, positions=learned)


def transformer(family: Family) -> nn.Module:
    """The same in plain modules."""
    wide, learned = known(family).ffn, known(family).positions
    bert, inside = family == "bert", plain.Gated if family == "llama" else plain.mlp
    blocks = (
        plain.Block(WIDTH, HEADS, inside(WIDTH, wide), causal=not bert, post=bert) for _ in range(2)
    )
    first = plain.Tables(WORDS, learned, WIDTH, bert=bert)
    return nn.Sequential(first, *blocks, plain.Head(WIDTH, WORDS, bert=bert))


def text(step: int) -> tuple[Tensor, Tensor]:
    tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    return tokens, tokens


def entropy(y: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(y.flatten(0, 1), targets.flatten())


def _text(name: Family, **more: Any) -> list[Task]:
    made: dict[str, Any] = {"model": partial(transformer, name), "data": text, "loss": entropy}
    return [Task(name=name, optimizer=AdamW, steps=9, **made | more)]


gpt, llama, bert = (partial(_text, family) for family in ("gpt", "llama", "bert"))


@pytest.mark.parametrize("family", ["gpt", "llama", "bert"])
def test_shapes_say_what_formulas_say(family: Family) -> None:
    """Weights, but for biases of Llama's norms here, and FLOPs exactly; what a block keeps within
    0.05."""
    works, model = works_of(f"{HERE}:{family}"), known(family)
    own = estimate_own(works, "a100-80", "tf32").tasks[0].layers
    spec = Spec("x", "a100-80", BATCH, dtype="tf32")
    theirs = estimate(spec, {"x": model}).tasks[0].layers
    for mine, other in zip(own, theirs, strict=True) if family != "llama" else ():
        assert mine.param_bytes == mine.grad_bytes == other.param_bytes
        assert mine.state_bytes == other.state_bytes
        assert (mine.update_device, mine.update_host) == (other.update_device, other.update_host)
        assert [c.microbatch for c in mine.costs] == [c.microbatch for c in other.costs]
    formulas = chain(Size(model, BATCH, TOKENS, 4))
    for at, formula in ((0, formulas[0]), (1, formulas[1]), (2, formulas[1]), (3, formulas[2])):
        forward, backward = works.layers[0][at].costs[-1]
        assert sum(flops for flops, *_ in forward) == sum(k.flops for k in formula.forward)
        assert sum(flops for flops, *_ in backward) == sum(k.flops for k in formula.backward)
    mine, other = own[1].costs[-1], theirs[1].costs[-1]
    assert mine.saved_bytes == pytest.approx(other.saved_bytes, rel=0.05)
    assert mine.backward_peak_bytes == pytest.approx(other.backward_peak_bytes, rel=0.1)
    assert mine.backward.median_us == pytest.approx(other.backward.median_us, rel=0.3)


def mlp() -> list[Task]:
    """Two tasks of a frozen layer, one of which trains in bf16 with momentum and a clip."""

    def model() -> nn.Module:
        layers = [nn.Linear(16, 16), nn.GELU(), nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1))]
        layers[0].requires_grad_(False)
        return nn.Sequential(*layers, nn.BatchNorm1d(16))

    def data(step: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(4, 16), torch.zeros(4, 16)

    more: dict[str, Any] = {"model": model, "data": data, "loss": F.mse_loss, "steps": 3}
    momentum = partial(SGD, lr=0.1, momentum=0.9)
    return [
        Task(name="a", optimizer=AdamW, **more),
        Task(name="b", optimizer=momentum, precision="bf16", clip=1.0, **more),
    ]


def test_shapes_say_what_the_profiler_measures(tmp_path: Path) -> None:
    """Bytes of parameters, gradients, state, batches and boundaries, exactly."""
    profile(f"{HERE}:mlp", str(tmp_path / "p.json"), "--device-memory", "8MiB")
    measured = profiles.load(tmp_path / "p.json").tasks
    works = works_of(f"{HERE}:mlp")
    for mine, other in zip(works.tasks, measured, strict=True):
        for name in ("batch", "steps", "optimizer", "precision", "norm_bytes", "ties"):
            assert getattr(mine, name) == getattr(other, name), name
        sizes = {cost.microbatch for cost in other.batches}
        assert sizes <= {cost.microbatch for cost in mine.batches}
        assert {c for c in mine.batches if c.microbatch in sizes} == set(other.batches)
        for layer, seen in zip(mine.layers, other.layers, strict=True):
            for name in ("name", "param_bytes", "grad_bytes", "state_bytes"):
                assert getattr(layer, name) == getattr(seen, name), name
            assert (layer.norm is None) == (seen.norm is None)
            for cost in seen.costs:
                (own,) = (c for c in layer.costs if c.microbatch == cost.microbatch)
                assert (own.in_bytes, own.out_bytes) == (cost.in_bytes, cost.out_bytes)
    first, second = works.tasks
    assert len({first.base, second.base, None}) == 3  # in other numbers


def test_a_model_whose_layers_are_not_seen_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """And a note says so."""

    def data(step: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(4, 16), torch.zeros(4, 16)

    task = Task("w", partial(nn.Linear, 16, 16), data, F.mse_loss, AdamW, steps=1)
    assert len(_seen(task, "x", "y")[0].layers) == 1
    assert "note: task w: its shapes show one layer; " in capsys.readouterr().err


def odd() -> list[Task]:
    """Its model goes by values."""

    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if float(x.sum()) > 1 else x

    return [Task("odd", partial(Odd, 4, 4), text, F.mse_loss, AdamW, steps=1)]


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other processes find what tests import, and write elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")


@pytest.mark.usefixtures("quick", "found")
def test_own_tasks_are_estimated_as_known_models_are() -> None:
    """As a table of GPUs, or as a profile that can be planned."""
    ref = f"{HERE}:gpt"
    said = succeeded(planner_cli("estimate", ref, "--gpu", "H100,4090", "--price", "4090=1")).out
    head, names, cheapest, other = said.splitlines()
    assert head == "gpt, estimated, 9 steps of 4 samples"
    assert (names.split()[0], cheapest.split()[0], other.split()[0]) == ("GPU", "4090", "h100")
    assert (
        "gpt on l4, estimated: fp32"
        in succeeded(planner_cli("estimate", ref, "--gpu", "l4", "-o", "x.json")).out
    )
    assert profiles.load("x.json").estimated
    succeeded(planner_cli("build", "x.json", "-o", "plan.json"))


@pytest.mark.usefixtures("found")
def test_own_tasks_are_estimated_with_other_steps() -> None:
    """What training costs is asked before it is known how long it takes."""
    said = succeeded(planner_cli("estimate", f"{HERE}:gpt", "--gpu", "l4", "--steps", 70)).out
    assert said.startswith("gpt, estimated, 70 steps of 4 samples")


@pytest.mark.usefixtures("found")
def test_what_own_tasks_say_themselves_is_refused() -> None:
    """As what they cannot say is, and a GPU without their numbers, each in one line."""
    ref = f"{HERE}:odd"
    refused(planner_cli("estimate", ref, "--gpu", "l4", "--seq", 4), 2, "--seq is what ")
    refused(planner_cli("estimate", ref, "--gpu", "l4"), 2, "task odd: shapes alone do not say wh")
    with pytest.raises(FormatError, match="task b trains in bf16; k80 has fp32"):
        estimate_own(works_of(f"{HERE}:mlp"), "k80")
    refused(planner_cli("estimate", "gpt2", "--gpu", "l4"), 2, "add --batch")
