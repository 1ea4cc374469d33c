"""Workloads by the name of a model: from a local folder with a config, without any network."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.cli import executor_cli, refused, succeeded

import profiles
from executor.errors import WorkloadError
from executor.workload import build, huggingface, load

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("quick", "untimed")]

GPT2 = {"vocab_size": 64, "n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 32}
T5 = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
VIT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
BERT = {k: v for k, v in VIT.items() if "size" in k and k[0] in "hi" and k != "image_size"} | {
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}


def folder(path: Path, kind: str, settings: dict[str, Any]) -> str:
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
    getattr(transformers, kind)(**settings | ends).save_pretrained(path / "tiny")
    return f"hf:{path / 'tiny'}"


@pytest.mark.parametrize(
    ("task", "kind", "settings"),
    [
        ("causal-lm", "GPT2Config", GPT2),
        ("masked-lm", "BertConfig", BERT),
        ("seq2seq-lm", "T5Config", T5),
        ("sequence-classification", "GPT2Config", GPT2),
        ("image-classification", "ViTConfig", VIT),
    ],
)
def test_every_task_has_batches_that_its_model_takes(
    task: str, kind: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The model computes its own loss; a step's batch is always the same, another step's is not."""
    (made,), _ = load(f"{folder(tmp_path, kind, settings)}?task={task}&batch=3&seq=8&steps=2")
    model, _ = build(made)
    batch = made.data(0)
    assert all(len(value) == 3 for value in batch.values())
    assert torch.isfinite(model(**batch).loss)
    assert all(torch.equal(value, made.data(0)[key]) for key, value in batch.items())
    assert any(not torch.equal(value, made.data(1)[key]) for key, value in batch.items())
    assert (made.name, made.steps, made.loss) == ("tiny", 2, None)


def test_a_reference_carries_everything(tmp_path: Path) -> None:
    """Options survive the way into a plan and back; other ones have another hash."""
    name = folder(tmp_path, "GPT2Config", GPT2)
    options = huggingface.Options(batch=2, seq=4, steps=5, lr=0.5, seed=3, precision="bf16")
    ref = huggingface.ref(name.removeprefix("hf:"), options)
    assert huggingface.parse(ref) == (name.removeprefix("hf:"), options)
    (task,), said = load(ref)
    assert (task.steps, task.seed, task.precision) == (5, 3, "bf16")
    assert load(ref)[1] == said != load(f"{name}?batch=3&seq=4")[1]


def test_made_up_documents_have_lengths(tmp_path: Path) -> None:
    """The longest is as long as asked for, most are shorter; another seed makes others."""
    name = folder(tmp_path, "GPT2Config", GPT2)
    (task,), (other,) = (
        load(f"{name}?longest=32&batch=4&steps=9&seed={seed}")[0] for seed in (0, 1)
    )
    assert (len(task.lengths), task.batch, task.steps) == (36, 4, 9)
    assert max(task.lengths) == 32 > 4 * sorted(task.lengths)[18]
    ((inputs, targets),) = task.data([0])
    assert torch.equal(inputs["input_ids"][1:], targets[:-1])
    assert 0 <= int(targets[:-1].min()) <= int(targets.max()) < GPT2["vocab_size"]
    assert not torch.equal(inputs["input_ids"], other.data([0])[0][0]["input_ids"])


def test_lengths_on_the_command_line_make_documents(tmp_path: Path) -> None:
    """Of up to the longest that is measured, packed; the reference says so."""
    name = folder(tmp_path, "GPT2Config", GPT2 | {"n_positions": 256, "n_layer": 1})
    call = ("profile", name, "--lengths", "32,64,128,256", "--device-memory", "64MiB")
    path = tmp_path / "x.json"
    succeeded(executor_cli(*call, "--batch", 4, "--steps", 3, "--samples", 1, "-o", path))
    (made,) = profiles.load(path).tasks
    assert "longest=256" in made.workload.ref
    assert made.lengths
    assert (made.lengths.longest, made.lengths.why_not) == (256, "")


def test_weights_in_the_folder_are_used(tmp_path: Path) -> None:
    """A folder with weights gives the model that was saved."""
    saved = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    saved.save_pretrained(tmp_path / "tiny")
    (task,), _ = load(f"hf:{tmp_path / 'tiny'}?seq=8")
    model, _ = build(task)
    assert torch.equal(model.transformer.wte.weight, saved.transformer.wte.weight)  # type: ignore[union-attr,operator]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (
            "?task=poetry",
            "Invalid enum value 'poetry' - at `.\\.task`; .* task is one of causal-lm, masked-lm",
        ),
        ("?batch=0", "Expected `int` >= 1 - at `.\\.batch`"),
        ("?batch=many", "Expected `int`, got `str` - at `.\\.batch`"),
        ("?color=red", "unknown field `color`; options are task, batch"),
        ("?seq=64", "seq is 64, the model takes 32 at most"),
        ("?longest=64", "longest is 64, the model takes 32 at most"),
        ("?longest=8&task=masked-lm", "longest is for causal-lm; leave it out for masked-lm"),
        ("?precision=int8", "'int8' - at `.\\.precision`; .* precision one of fp32"),
    ],
)
def test_a_bad_reference_is_refused(query: str, text: str, tmp_path: Path) -> None:
    """One line says which option it is and what it may be."""
    with pytest.raises(WorkloadError, match=text):
        load(folder(tmp_path, "GPT2Config", GPT2) + query)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    """The error names what was asked for."""
    with pytest.raises(WorkloadError, match="no config of"):
        load(f"hf:{tmp_path}")


def test_options_of_hugging_face_are_for_its_workloads_only() -> None:
    """A workload of one's own says its batch itself."""
    answer = executor_cli("profile", "my.py:tasks", "--batch", 2, "-o", "x.json")
    refused(answer, 2, "--batch is for hf: workloads")
