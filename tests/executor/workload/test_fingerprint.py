"""Fingerprints of tasks: others where another thing is trained, and only there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.imports import ROOT

import profiles
from executor.workload import build, built_fingerprint, load

WORK = '''
"""Two layers."""
import functools
import torch
from torch import nn
from executor import Task
import parts

WIDTH, NAMES = 4, {"x", "y", "z", "w"}
NOISE = torch.full((2,), 0.5)

class Net(nn.Module):
    """A net."""
    def __init__(self, width):
        super().__init__()
        self.names = NAMES
        self.slope = 2.0
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return self.slope * self.layers(x) + NOISE.sum()

def net():
    from parts import extra
    return nn.Sequential(Net(WIDTH), extra())

@functools.cache
def rows():
    return 3

def batch(step, *, seed=1):
    x = torch.full((rows(), WIDTH), float(step + seed))
    return x, x

def tasks():
    adam = functools.partial(torch.optim.AdamW, lr=0.1)
    return [Task("a", net, batch, parts.loss, adam, 5, groups=lambda name, p: {"lr": 0.2})]
'''
PARTS = """
from torch import nn
SCALE = 3
def helper(x):
    return SCALE * x
def loss(out, y):
    return helper(out - y).square().mean()
def extra():
    return nn.Dropout(0.1)
"""
WHOLE = "import sys\nfrom executor.workload import build, built_fingerprint, load\n"
WHOLE += "(task,), said = load(sys.argv[1])\n"
WHOLE += "print(built_fingerprint(said['a'], build(task)[0]))"


def fingerprint(folder: Path, work: str = WORK, parts: str = PARTS) -> str:
    """That of the task of a workload with these sources."""
    folder.mkdir(exist_ok=True)
    (folder / "work.py").write_text(work)
    (folder / "parts.py").write_text(parts)
    sys.modules.pop("parts", None)
    sys.path.insert(0, str(folder))
    try:
        (task,), said = load(f"{folder / 'work.py'}:tasks")
        return built_fingerprint(said["a"], build(task)[0])
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("parts", None)


def test_it_is_the_same_in_another_process_and_folder(tmp_path: Path) -> None:
    """Neither the order of sets, nor addresses, nor paths are in it."""
    own = fingerprint(tmp_path / "here")
    fingerprint(tmp_path / "there")
    ref = str(tmp_path / "there" / "work.py:tasks")
    env = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", WHOLE, ref], env=env, capture_output=True)
    assert done.stdout.decode().strip() == own, done.stderr.decode()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def net():", "# how wide?\n\n\ndef net( ):"),
        ('"""A net."""', '"""The net."""'),
        ("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:"),
        ("def tasks():", "def unused():\n    return 1\n\ndef tasks():"),
        ('{"x", "y", "z", "w"}', '{"w", "z", "y", "x"}'),
    ],
)
def test_what_trains_the_same_has_the_same(tmp_path: Path, old: str, new: str) -> None:
    """Comments, docstrings, annotations, places and what is not called do not count."""
    assert old in WORK
    assert fingerprint(tmp_path, WORK.replace(old, new)) == fingerprint(tmp_path)
    assert fingerprint(tmp_path, parts=f"# parts\n{PARTS}") == fingerprint(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("WIDTH, NAMES = 4", "WIDTH, NAMES = 5"),
        ("self.slope = 2.0", "self.slope = 2.5"),
        ("nn.ReLU()", "nn.GELU()"),
        ("+ NOISE", "- NOISE"),
        ("0.5)", "0.75)"),
        ("return 3", "return 4"),
        ("seed=1", "seed=2"),
        ("lr=0.1", "lr=0.3"),
        ('{"lr": 0.2}', '{"lr": 0.3}'),
        ("adam, 5", "adam, 6"),
        ('"z", "w"', '"z", "v"'),
        ("torch.optim.AdamW", "torch.optim.Adam"),
        ("SCALE * x", "SCALE + x"),
        ("SCALE = 3", "SCALE = 4"),
        ("Dropout(0.1)", "Dropout(0.2)"),
        ("square()", "abs()"),
    ],
)
def test_what_trains_something_else_has_another(tmp_path: Path, old: str, new: str) -> None:
    """Settings, layers, code and what it reads count, in files that a workload imports, too."""
    assert old in WORK + PARTS
    changed = fingerprint(tmp_path, WORK.replace(old, new), PARTS.replace(old, new))
    assert changed != fingerprint(tmp_path)


def test_what_only_the_built_model_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that comes from outside of the code is seen in the shapes."""
    work = WORK.replace("Net(WIDTH)", "Net(int(__import__('os').environ['NET_WIDTH']))")
    found = set()
    for width in ("4", "8"):
        monkeypatch.setenv("NET_WIDTH", width)
        found.add(fingerprint(tmp_path, work))
    assert len(found) == 2


def test_the_committed_profile_is_of_the_demo_as_it_is() -> None:
    """It can be planned for and run; where this fails, profile the demo again."""
    measured = profiles.load(ROOT / "profiles" / "sample.json")
    (ref,) = {task.workload.ref for task in measured.tasks}
    tasks, said = load(ref)
    own = {task.name: built_fingerprint(said[task.name], build(task)[0]) for task in tasks}
    assert {task.name: task.workload.sha256 for task in measured.tasks} == own
