"""Adapters of PEFT on frozen models of transformers: trained as in a plain loop, saved as PEFT
does."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from support.cli import executor_cli, refused
from support.quick import built, least, measured, quickly
from support.same import assert_same
from torch import Tensor, nn
from torch.optim import AdamW
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

from executor import Task, run
from plans.schema import Plan

pytestmark = pytest.mark.filterwarnings("default")  # the libraries have their own

SHAPE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2}
ROWS = SHAPE | {"vocab_size": 64, "max_position_embeddings": 16}


def gpt2() -> nn.Module:
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, **shape))


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**ROWS, num_key_value_heads=1))


def low() -> nn.Module:
    return llama().to(torch.bfloat16)


def qwen2(*, tied: bool = True) -> nn.Module:
    config = Qwen2Config(**ROWS, num_key_value_heads=1, tie_word_embeddings=tied)
    return Qwen2ForCausalLM(config)


def bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(**ROWS))


def vit() -> nn.Module:
    return ViTForImageClassification(ViTConfig(**SHAPE, image_size=8, patch_size=4))


def words(step: int) -> dict[str, Tensor]:
    text = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(step))
    return {"input_ids": text, "labels": text}


def classes(step: int) -> dict[str, Tensor]:
    text = words(step)["input_ids"]
    return {"input_ids": text, "labels": text[:, 0] % 2}


def pictures(step: int) -> dict[str, Tensor]:
    pixels = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(step))
    return {"pixel_values": pixels, "labels": torch.arange(4) % 2}


class Case(NamedTuple):
    base: Callable[[], nn.Module]
    config: Mapping[str, Any]
    data: Callable[[int], dict[str, Tensor]] = words

    def adapted(self) -> nn.Module:
        return get_peft_model(self.base(), LoraConfig(r=2, **self.config))

    def task(self, **fields: Any) -> Task:
        made = {"model": self.adapted, "data": self.data, "loss": None, "steps": 2}
        made["optimizer"] = partial(AdamW, lr=0.01, fused=True)
        return Task(name="a", **made | fields)


CASES = {
    "gpt2": Case(gpt2, {"target_modules": ["c_attn", "c_proj"], "lora_dropout": 0.2}),
    "gpt2, a norm": Case(gpt2, {"target_modules": ["c_attn"], "modules_to_save": ["ln_f"]}),
    "llama": Case(llama, {"target_modules": "all-linear", "lora_dropout": 0.1}),
    "llama, all words": Case(
        llama, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}
    ),
    "llama, low": Case(low, {"target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.1}),
    "llama, DoRA": Case(llama, {"target_modules": ["o_proj"], "use_dora": True}),
    "qwen2": Case(qwen2, {"target_modules": ["q_proj", "embed_tokens"], "bias": "all"}),
    "qwen2, few words": Case(
        partial(qwen2, tied=False),
        {"target_modules": ["k_proj"], "trainable_token_indices": [1, 3]},
    ),
    "bert": Case(bert, {"target_modules": ["query"], "task_type": "SEQ_CLS"}, classes),
    "vit": Case(
        vit, {"target_modules": ["q_proj", "fc1"], "modules_to_save": ["classifier"]}, pictures
    ),
}


def planned(task: Task, **fields: Any) -> Plan:
    """For the smallest device, in two microbatches."""
    with quickly():
        return least(measured(task, 2), **fields)


@pytest.mark.parametrize("name", CASES)
def test_an_adapter(name: str, tmp_path: Path) -> None:
    """Trained in as little memory as can be it has a plain loop's bits, and its folder gives the
    same logits on the base as it was."""
    case = CASES[name]
    task = case.task()
    plan = planned(task)
    result = run(plan, [task])
    assert_same(plan, [task], result)
    result.save("a", tmp_path / "a")
    files = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == files
    torch.manual_seed(task.seed)
    read = PeftModel.from_pretrained(case.base(), tmp_path / "a").eval()
    batch = case.data(9)
    assert torch.equal(read(**batch).logits, result.model("a").eval()(**batch).logits)


@pytest.mark.parametrize("precision", ["bf16", "bf16-autocast"])
def test_an_adapter_in_low_precision(precision: str) -> None:
    """Parameters in bf16, those that learn with fp32 masters; or a base in bf16 under autocast."""
    task = CASES["gpt2" if precision == "bf16" else "llama, low"].task(precision=precision)
    plan = planned(task)
    assert_same(plan, [task], run(plan, [task]))


@pytest.mark.parametrize(("layout", "devices"), [("2x1", 2), ("4x1", 4)])
def test_an_adapter_in_a_pipeline(layout: str, devices: int) -> None:
    """With dropout in the adapters."""
    task = CASES["llama"].task()
    with quickly():
        plan = built(measured(task, 2), layout=layout)
    assert len(plan.devices) == devices
    assert_same(plan, [task], run(plan, [task]))


def missing() -> list[Task]:
    """An adapter of layers that the model has not."""
    return [Case(gpt2, {"target_modules": ["q_proj"]}).task()]


@pytest.mark.usefixtures("here")
def test_an_adapter_of_a_layer_that_is_missing() -> None:
    """PEFT's own words, in one line."""
    command = ("profile", f"{__file__}:missing", "--device-memory", "1GiB", "-o", "x.json")
    said = "Target modules {'q_proj'} not found in the base model"
    refused(executor_cli(*command), 2, said)
