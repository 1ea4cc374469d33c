"""The notebooks run, and what they store is what they print today."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All notebooks executed by `notebooks/renew.py`, in a process of its own: the kernel client's
    event loop and its warnings stay out of the tests."""
    folder = tmp_path_factory.mktemp("renewed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "renew.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_are_those_of_a_fresh_run(renewed: Path, path: Path) -> None:
    """Same texts, and as many pictures, cell by cell; `make notebooks` stores them anew."""
    assert outputs(path) == outputs(renewed / path.name)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_is_stored_with_texts_and_pictures(path: Path) -> None:
    """So that a page that renders notebooks shows them whole."""
    found = outputs(path)
    assert any(texts for texts, _ in found)
    assert any(pictures for _, pictures in found)


def outputs(path: Path) -> list[tuple[list[str], int]]:
    """Per code cell the texts it printed, and how many pictures it drew."""
    cells = json.loads(path.read_bytes())["cells"]
    return [one_cell(cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]


def one_cell(made: list[dict[str, Any]]) -> tuple[list[str], int]:
    texts = ["".join(o["text"]) for o in made if o["output_type"] == "stream"]
    pictures = [o for o in made if "image/png" in o.get("data", {})]
    return texts, len(pictures)
