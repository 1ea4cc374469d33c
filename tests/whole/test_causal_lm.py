"""Causal language models of transformers with documents of every length, from a profile to the bits
of a plain loop over the same microbatches: models x devices x ways to pack x memory.

Not every combination is run, but every two values of two factors meet.
"""

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from support.causal_lms import BATCH, STEPS, gpt2, llama, qwen2, row, task
from support.cli import executor_cli, planner_cli, profile, succeeded
from support.covering import covering
from support.plain import Loop
from support.same import same
from support.small_texts import groups
from torch import Tensor

import plans
from executor.workload import Task
from plans import runlog
from plans.samples import open_table, table_path

pytestmark = [
    pytest.mark.filterwarnings("default"),  # transformers has its own
    pytest.mark.usefixtures("quick", "untimed"),
]


def of_llama() -> list[Task]:
    """Attention drops some of its weights."""
    return [task(partial(llama, attention_dropout=0.1), seed=3)]


def of_qwen2() -> list[Task]:
    """Some layers see a few tokens back only; large gradients are clipped."""
    return [task(qwen2, clip=0.5)]


def of_gpt2() -> list[Task]:
    """Drops whatever it can."""
    return [task(gpt2)]


TASKS: dict[str, Callable[[], list[Task]]] = {
    "llama": of_llama,
    "qwen2": of_qwen2,
    "gpt2": of_gpt2,
}


class Case(NamedTuple):
    """devices: stages of a pipeline. room: MiB of a device."""

    model: str
    devices: int
    packing: str
    room: int

    def __str__(self) -> str:
        return "-".join(map(str, self))


CASES = covering(map(Case._make, product(TASKS, (1, 2), ("balanced", "fixed"), (2, 8))))


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The profile of a model's task, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("lms")

    def made(model: str) -> Path:
        path = folder / f"{model}.json"
        if not path.exists():
            sizes = ("--lengths", "32,64,128,256", "--device-memory", "64MiB")
            profile(f"{__file__}:of_{model}", str(path), *sizes)
        return path

    return made


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bits_of_the_plain_loop(
    case: Case, profiled: Callable[[str], Path], tmp_path: Path
) -> None:
    """Losses and parameters; documents share microbatches."""
    path = tmp_path / "p.json"
    asked = {
        "--devices": case.devices,
        "--layout": f"{case.devices}x1",
        "--packing": case.packing,
        "--device-memory": f"{case.room}MiB",
    }
    flags = [text for pair in asked.items() for text in pair]
    succeeded(planner_cli("build", profiled(case.model), *flags, "-o", path))
    succeeded(executor_cli("run", path, "-o", tmp_path / "x"))
    (made,) = TASKS[case.model]()
    rows = open_table(table_path(path, "lm"), BATCH).tolist()
    assert max(map(max, rows)) + 1 < BATCH
    losses, params = looped(made, rows)
    assert [line.loss for line in runlog.load(tmp_path / "x").steps] == losses
    assert same(dict(torch.load(tmp_path / "x" / "lm.pt")["model"]), params)


def looped(made: Task, rows: list[list[int]]) -> tuple[list[float], dict[str, Tensor]]:
    """The losses and the state of a loop through the microbatches of these rows."""
    torch.manual_seed(made.seed)
    assert callable(made.model)
    loop, losses = Loop(made, made.model().train(), None), []
    for step, own in enumerate(rows):
        numbers = [(step * BATCH + j) % len(made.lengths) for j in range(BATCH)]
        whole = sum(int((targets != -100).sum()) for _, targets in made.data(numbers))
        parts = [row(made.data(group)) for group in groups(own, numbers) if group]
        losses.append(sum(loop.add(part, whole) for part in parts))
        loop.update()
    return losses, dict(loop.model.state_dict())


def test_the_example_of_the_page_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands there, in at most 25 lines, several documents in a microbatch."""
    page = Path(plans.__file__).parents[1] / "docs" / "lengths.md"
    blocks = page.read_text().split("```python\n")[1:]
    (block,) = (code for one in blocks if "causal_lm(" in (code := one.split("```")[0]))
    assert len(block.splitlines()) <= 25
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(block)
    profile("my.py:tasks", "x.json", "--device-memory", "64MiB")
    succeeded(planner_cli("build", "x.json", "--device-memory", "8MiB", "-o", "p.json"))
    succeeded(executor_cli("run", "p.json", "-o", "x"))
    planned = plans.load("p.json").tasks[0]
    assert planned.microbatches < planned.batch
    assert len(runlog.load("x").steps) == planned.steps


def test_packing_needs_fewer_microbatches(profiled: Callable[[str], Path], tmp_path: Path) -> None:
    """Than documents, each of which had its own if they could not share one."""
    packed = profiled("llama")
    alone = json.loads(packed.read_text())
    alone["tasks"][0]["lengths"]["why_not"] = "as an experiment"
    (tmp_path / "llama.json").write_text(json.dumps(alone))
    (tmp_path / "llama.lm.lengths").write_bytes((packed.parent / "llama.lm.lengths").read_bytes())
    counts, spans = list[int](), list[int]()
    for name, source in (("packed", packed), ("alone", tmp_path / "llama.json")):
        path = tmp_path / f"{name}.plan.json"
        succeeded(planner_cli("build", source, "--device-memory", "8MiB", "-o", path))
        rows = open_table(table_path(path, "lm"), BATCH)
        counts.append(sum(len(set(own)) for own in rows.tolist()))
        spans.append(plans.load(path).prediction.makespan_us)
    assert counts[1] == BATCH * STEPS
    assert 2 * counts[0] <= counts[1]
    assert spans[0] < spans[1]
