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
@pytest.mark.parametrize("folder", [ROOT, ROOT / "notebooks"], ids=["root", "notebooks"])
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, folder: Path) -> None:
    """Every cell runs, from the repository's root as from the notebooks' folder."""
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
