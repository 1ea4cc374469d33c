"""What the README says of one's own model, and of a Hugging Face config: as typed, to the end."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.cli import executor_cli, planner_cli, smallest_budget, succeeded
from support.plain import train
from support.quick import quickly
from support.same import assert_saved
from transformers import GPT2Config

import plans
from executor.workload import load
from plans import runlog

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers has its own
    pytest.mark.usefixtures("here"),
]

README = Path(plans.__file__).parents[1] / "README.md"


def snippet() -> str:
    """The file of the README's section, with a few steps of a smaller model."""
    section = README.read_text().split("## Bring your model", 1)[1]
    code = section.split("```python\n", 1)[1].split("```", 1)[0]
    smaller = {"1000": "4", "every=100": "every=2", "batches=8": "batches=2", "64)": "8)"}
    for told, short in (smaller | {"n_embd=64, n_layer=4": "n_embd=16, n_layer=2"}).items():
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
        succeeded(executor_cli("run", "plan.json", "-o", "x"))
    plan = plans.load("plan.json")
    ((task,), _), (planned,) = load(plan.tasks[0].workload.ref), plan.tasks
    plain, log = train(task, planned.microbatches), runlog.load("x")
    assert [s.loss for s in sorted(log.steps, key=lambda s: s.step)] == plain.losses
    assert_saved(f"x/{task.name}.pt", plain)
    return plan


def test_the_model_of_the_readme() -> None:
    """Its file, as it stands there but for the number of steps, trains what a plain loop does."""
    Path("my.py").write_text(snippet())
    plan = trained("my.py:tasks")
    assert len(plan.tasks[0].shards) > 1
    evaluations = runlog.load("x").evaluations
    assert sorted(found.step for found in evaluations) == [2, 4]
    explained = succeeded(executor_cli("profile", "my.py:tasks", "--explain"))
    assert "GPT2Block" in explained.out


def test_a_hugging_face_config_goes_the_same_way() -> None:
    """From a local folder with a config to a trained model, through the same commands."""
    shape = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    GPT2Config(vocab_size=64, **shape, bos_token_id=1, eos_token_id=2).save_pretrained("tiny")
    shape = ("--task", "causal-lm", "--batch", 4, "--seq", 8, "--steps", 3)
    plan = trained("hf:tiny", *shape)
    assert plan.tasks[0].steps == 3
    assert len(plan.tasks[0].shards) > 1
