"""The first hour's commands run, in their order, as the page has them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import plans

DOCS = Path(plans.__file__).parents[1] / "docs"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_script_runs_every_command_of_the_page() -> None:
    """In the short form, which prints each with its time; those of a GPU are left out."""
    page = (DOCS / "first-hour.md").read_text()
    found = re.findall(r"^ {4}((?:make|source|python) .*)$", page, re.MULTILINE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [DOCS / "first_hour.sh", "--short"],
        env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = re.findall(r"^ +\d+\.\d s   (.*)$", done.stdout, re.MULTILINE)
    assert len(found) > 12
    assert told == [command for command in found if "--device cuda" not in command]
