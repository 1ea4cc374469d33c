"""What the README says of one's own model, and of a Hugging Face config: as typed, to the end."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.cli import executor_cli, planner_cli, smallest_budget, succeeded
from support.plain import train
from support.quick import quickly
from support.same import assert_saved
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import plans
from executor.workload import load
from plans import runlog

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers has its own
    pytest.mark.usefixtures("here"),
]

ROOT = Path(plans.__file__).parents[1]


def snippet(page: str, head: str, smaller: Mapping[str, str]) -> str:
    """The first file behind a page's headline, with a few steps of a smaller model."""
    section = (ROOT / page).read_text().split(head, 1)[1]
    code = section.split("```python\n", 1)[1].split("```", 1)[0]
    for told, short in smaller.items():
        assert told in code
        code = code.replace(told, short)
    return code


def trained(ref: str, *options: object) -> plans.Plan:
    """Profile, build, check and run on the smallest device, and compare with a plain loop."""
    machine = ("--device-memory", "64MiB", "--devices", 1, "--samples", 1, *options)
    with quickly():
        succeeded(executor_cli("profile", ref, *machine, "-o", "profile.json"))
        room = ("--device-memory", smallest_budget("profile.json"))
        succeeded(planner_cli("build", "profile.json", "-o", "plan.json", *room))
        succeeded(planner_cli("check", "plan.json"))
        succeeded(executor_cli("run", "plan.json", "-o", "x", "--save", "exports"))
    plan = plans.load("plan.json")
    ((task,), _), (planned,) = load(plan.tasks[0].workload.ref), plan.tasks
    plain, log = train(task, planned.microbatches), runlog.load("x")
    assert [s.loss for s in sorted(log.steps, key=lambda s: s.step)] == plain.losses
    assert_saved(f"x/{task.name}.pt", plain)
    return plan


def test_the_model_of_the_readme() -> None:
    """Its file, as it stands there but for the number of steps, trains what a plain loop does."""
    smaller = {"1000": "4", "every=100": "every=2", "batches=8": "batches=2", "64)": "8)"}
    smaller["n_embd=64, n_layer=4"] = "n_embd=16, n_layer=2"
    Path("my.py").write_text(snippet("README.md", "## Bring your model", smaller))
    plan = trained("my.py:tasks")
    assert len(plan.tasks[0].shards) > 1
    evaluations = runlog.load("x").evaluations
    assert sorted(found.step for found in evaluations) == [2, 4]
    explained = succeeded(executor_cli("profile", "my.py:tasks", "--explain"))
    assert "GPT2Block" in explained.out
    read = GPT2LMHeadModel.from_pretrained("exports/mine")
    saved = torch.load("x/mine.pt")["model"]
    assert all(torch.equal(value, saved[name]) for name, value in read.state_dict().items())


def test_the_adapter_of_the_page() -> None:
    """Its file, with a smaller base, trains what a plain loop does; PEFT reads what is saved, and
    the command again writes only that."""
    peft = pytest.importorskip("peft")
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(**shape, **heads)).save_pretrained("tiny")
    Path("tiny/tokenizer.json").write_text("{}")
    smaller = {"Qwen/Qwen2.5-0.5B": "tiny", "1000, ": "64, ", "1000)": "3)", "8, 64": "4, 8"}
    code = snippet("docs/adapters.md", "# Adapters", smaller)
    assert len(code.splitlines()) <= 25
    Path("lora.py").write_text(code)
    trained("lora.py:tasks")
    first = Path("exports/mine/adapter_model.safetensors").read_bytes()
    shutil.rmtree("exports")
    again = succeeded(executor_cli("run", "plan.json", "-o", "x", "--save", "exports"))
    assert "exports/mine: written" in again.err
    assert Path("exports/mine/adapter_model.safetensors").read_bytes() == first
    assert Path("exports/mine/tokenizer.json").exists()
    text = torch.arange(8)[None]
    base = AutoModelForCausalLM.from_pretrained("tiny", dtype=torch.bfloat16)
    ((task,), _) = load("lora.py:tasks")
    torch.manual_seed(task.seed)
    plain = task.model().eval()
    kept = torch.load("x/mine.pt")["model"]
    assert all("lora" in name for name in kept)
    plain.load_state_dict(kept, strict=False)
    read = peft.PeftModel.from_pretrained(base, "exports/mine").eval()
    assert torch.equal(read(text).logits, plain(text).logits)


def test_a_hugging_face_config_goes_the_same_way() -> None:
    """From a local folder with a config to a trained model, through the same commands."""
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    GPT2Config(vocab_size=64, **shape, bos_token_id=1, eos_token_id=2).save_pretrained("tiny")
    shape = ("--task", "causal-lm", "--batch", 4, "--seq", 8, "--steps", 3)
    plan = trained("hf:tiny", *shape)
    assert plan.tasks[0].steps == 3
    assert len(plan.tasks[0].shards) > 1
