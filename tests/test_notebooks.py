"""The notebooks run as they are, and are kept without outputs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# In a process of its own: the kernel client's event loop and its warnings stay out of the tests.
_RUN = """
import sys, nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
place = {"metadata": {"path": sys.argv[2]}}
nbclient.NotebookClient(book, timeout=200, kernel_name="python3", resources=place).execute()
"""


@pytest.mark.notebook
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    """Every cell runs."""
    executed(path, ROOT)


@pytest.mark.notebook
def test_a_notebook_runs_in_its_own_folder() -> None:
    """All find the repository in the same way, so one will do."""
    found = [json.loads(path.read_bytes())["cells"] for path in NOTEBOOKS]
    heads = [next(c for c in cells if c["cell_type"] == "code")["source"][:7] for cells in found]
    assert heads == [heads[0]] * len(heads)
    executed(NOTEBOOKS[0], ROOT / "notebooks")


def executed(path: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    """Outputs in the repository would go stale and make every run a change."""
    cells = json.loads(path.read_bytes())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
