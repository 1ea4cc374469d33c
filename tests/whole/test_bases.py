"""Tasks that train adapters on one frozen base, together in one program: each has the bits of a
plain loop that knows of no other."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from peft import LoraConfig, get_peft_model
from support.based import grouped
from support.plain import Plain, train
from support.quick import ROOM, measured, quickly
from support.same import assert_same
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

from executor import Evaluation, Task, run
from planner import Infeasible, Problem
from planner.bases import groupings
from plans import prove
from plans.schema import Plan
from profiles.schema import Profile

pytestmark = pytest.mark.filterwarnings("default")  # the libraries have their own

SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2}
ROWS = SHAPE | {"vocab_size": 64, "max_position_embeddings": 16}


def gpt2() -> nn.Module:
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, **shape))


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**ROWS, num_key_value_heads=1)).to(torch.bfloat16)


def qwen2() -> nn.Module:
    return Qwen2ForCausalLM(Qwen2Config(**ROWS, num_key_value_heads=1, tie_word_embeddings=False))


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(**ROWS))


def vit() -> nn.Module:
    return ViTForImageClassification(ViTConfig(**SHAPE, image_size=8, patch_size=4))


class Still(nn.BatchNorm2d):
    """Keeps its statistics, in training as well."""

    def train(self, mode: bool = True) -> "Still":
        return super().train(False)


def cnn() -> nn.Module:
    convolutions = nn.Conv2d(3, 8, 3), Still(8), nn.ReLU(), nn.Conv2d(8, 8, 3), Still(8)
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(128, 2))


def words(step: int) -> dict[str, Tensor]:
    text = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(step))
    return {"input_ids": text, "labels": text}


def classes(step: int) -> dict[str, Tensor]:
    text = words(step)["input_ids"]
    return {"input_ids": text, "labels": text[:, 0] % 2}


def photos(step: int) -> tuple[Tensor, Tensor]:
    pixels = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
    return pixels, torch.arange(4) % 2


def pictures(step: int) -> dict[str, Tensor]:
    return dict(zip(("pixel_values", "labels"), photos(step), strict=True))


Adapter = Mapping[str, Any]


class Case(NamedTuple):
    """A base, and what each task adapts of it."""

    base: Callable[[], nn.Module]
    adapters: tuple[Adapter, ...]
    data: Callable[[int], Any] = words
    loss: Callable[[Any, Tensor], Tensor] | None = None
    more: Mapping[str, Any] = {}

    def adapted(self, own: Adapter) -> nn.Module:
        """The same base whatever the seed, and an adapter that depends on it."""
        with torch.random.fork_rng():
            torch.manual_seed(1)
            base = self.base()
        return get_peft_model(base, LoraConfig(**{"r": 2} | own))

    def tasks(self, steps: int = 2) -> list[Task]:
        """Of other seeds, learning rates, optimizers and clipping."""
        every = [partial(AdamW, lr=0.01, fused=True), partial(SGD, lr=0.1), partial(AdamW, lr=0.03)]
        return [
            Task(
                name=f"t{n}",
                model=partial(self.adapted, own),
                data=lambda step, n=n: self.data(10 * step + n),
                loss=self.loss,
                optimizer=every[n],
                steps=steps,
                clip=0.1 if n == 1 else None,
                seed=n,
                **self.more,
            )
            for n, own in enumerate(self.adapters)
        ]


QUERIES = {"target_modules": ["q_proj", "v_proj"]}
CASES = {
    "gpt2": Case(
        gpt2,
        (
            {"target_modules": ["c_attn", "c_proj"], "lora_dropout": 0.2},
            {"target_modules": ["c_attn"], "r": 4},
            {"target_modules": ["c_fc"], "lora_dropout": 0.1},
        ),
    ),
    "llama": Case(llama, (QUERIES | {"lora_dropout": 0.1}, QUERIES | {"r": 3})),
    "qwen2": Case(
        qwen2,
        (
            {"target_modules": ["down_proj"], "use_dora": True},
            {"target_modules": ["embed_tokens", "o_proj"], "lora_dropout": 0.1},
        ),
        more={"evaluate": Evaluation(every=1, data=lambda n: words(900 + n), batches=2)},
    ),
    "bert": Case(
        bert,
        tuple(
            {"target_modules": ["query"], "task_type": "SEQ_CLS", "lora_dropout": p}
            for p in (0.1, 0.0)
        ),
        classes,
    ),
    "vit": Case(
        vit,
        (
            {"target_modules": ["q_proj", "fc1"], "modules_to_save": ["classifier"]},
            {"target_modules": ["v_proj"], "modules_to_save": ["classifier"], "lora_dropout": 0.1},
        ),
        pictures,
    ),
    "cnn": Case(
        cnn,
        (
            {"target_modules": ["0", "3"], "lora_dropout": 0.1},
            {"target_modules": ["3"], "r": 4},
        ),
        photos,
        F.cross_entropy,
    ),
}


@cache
def profiled(name: str) -> Profile:
    with quickly():
        return measured(CASES[name].tasks(), 2)


@cache
def plain(name: str, number: int) -> Plain:
    return train(CASES[name].tasks()[number], 2)


def together(made: Profile, devices: int = 1, room: int = ROOM) -> Plan:
    """The plan in which all tasks train together, on the smallest devices of more bytes than
    `room` that do."""
    with quickly():
        while True:
            asked = Problem.of(made, devices=devices, device_bytes=room, host_bytes=None)
            try:
                plan = grouped(asked, groupings(asked)[0])
                break
            except Infeasible as error:
                room = error.smallest
    prove(plan)
    assert {task.base for task in plan.tasks} == {"t0"}
    assert all(len(program.tasks) == len(made.tasks) for program in plan.programs)
    return plan


def assert_alone(name: str, plan: Plan) -> None:
    """Run the plan: each task has the bits that it has alone."""
    tasks = CASES[name].tasks()
    oracle = {task.name: partial(plain, name, n) for n, task in enumerate(tasks)}
    assert_same(plan, tasks, run(plan, tasks), lambda task, _: oracle[task.name]())


@pytest.mark.parametrize("name", CASES)
def test_each_task_as_if_alone(name: str) -> None:
    """On a device of as little memory as can be."""
    plan = together(profiled(name), room=1)
    assert any(op.name.item == "base" for program in plan.programs for op in program.round)
    assert_alone(name, plan)


@pytest.mark.parametrize(("name", "devices"), [("llama", 4), ("qwen2", 2), ("cnn", 2)])
def test_each_task_as_if_alone_in_a_pipeline(name: str, devices: int) -> None:
    plan = together(profiled(name), devices)
    assert max(program.devices for program in plan.programs) == devices
    assert_alone(name, plan)
