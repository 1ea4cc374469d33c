"""The changes that CONTRIBUTING shows: each is small, applies, and does what it says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import plans

ROOT = Path(plans.__file__).parents[1]
CHANGES = {
    "order": (
        """
from planner.orders import NAMED, Cost, Pipeline
(made,) = NAMED["lone"](Pipeline.alike([Cost(1, 1, 1)] * 2, 1, 2), ((0,), (0,)))
print(*(f"{p.kind}{p.shard}.{p.microbatch}" for p in made))
""",
        "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1",
    ),
    "packing": (
        """
from planner.packing import Curve, packed
print(packed([4, 3, 5, 1], "nfd", 8, Curve(0, 1)).groups)
""",
        "(0, 0, 1, 0)",
    ),
    "device": (
        """
import torch
from executor.devices import open_devices
from plans.schema import Device
(one,) = open_devices([Device("c", "counting", 64, 1)], [64])
one.copy_in(one.slab[:8], torch.ones(8, dtype=torch.uint8))
print(one.moved, int(one.slab[:8].sum()))
""",
        "8 8",
    ),
    "bound": (
        """
import plans
from planner.cli.parser import main
main("build profiles/sample.json --devices 1 --policy hydra -o p.json".split())
us = {bound.name: bound.us for bound in plans.load("p.json").prediction.bounds}
print(us["updates"] >= us["compute"])
""",
        "True",
    ),
}
"""Of each a few lines that use what it adds, and what they print."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_worked_change_does_what_it_says(name: str, tmp_path: Path) -> None:
    """In a copy of the tree, by at most 40 lines."""
    change, (script, printed) = ROOT / "docs" / "changes" / f"{name}.diff", CHANGES[name]
    assert len(change.read_text().splitlines()) <= 40
    for folder in ("planner", "executor", "plans", "profiles", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    subprocess.run(["git", "apply", change], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == printed


def test_every_change_is_in_the_page_and_tried() -> None:
    """CONTRIBUTING links to each."""
    linked = re.findall(r"\(docs/changes/(\w+)\.diff\)", (ROOT / "CONTRIBUTING.md").read_text())
    files = {path.stem for path in ROOT.glob("docs/changes/*.diff")}
    assert files == {*linked} == {*CHANGES}
