"""The READMEs name files that exist, commands and options that are known."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import plans
from executor.cli import main as executor_main
from planner.cli import main as planner_main

ROOT = Path(plans.__file__).parents[1]
READMES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md"))]
MAINS: dict[str, Callable[[list[str]], int]] = {"planner": planner_main, "executor": executor_main}

each = pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)


@each
def test_links_lead_somewhere(readme: Path) -> None:
    """Links to pages and pictures of this repository."""
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", readme.read_text())
    assert [link for link in links if not (readme.parent / link).exists()] == []


@each
def test_files_that_are_named_exist(readme: Path) -> None:
    """Python and C files with their folder, from the root or from the README's own folder."""
    text = readme.read_text()
    files = re.findall(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|c)\b", text)
    files += [name.replace(".", "/") + ".py" for name in re.findall(r"-m (tests[\w.]+)", text)]
    homes = ROOT, readme.parent
    assert [f for f in files if not any((home / f).exists() for home in homes)] == []


@each
def test_options_that_are_named_are_known(readme: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option of every command line, by the help of the command."""
    unknown = []
    for package, command, rest in re.findall(
        r"python -m (planner|executor) ([a-z]+)([^`\n]*)", readme.read_text()
    ):
        with pytest.raises(SystemExit):
            MAINS[package]([command, "--help"])
        known = re.findall(r"(?<!\S)(?:-o|--[a-z0-9-]+)", capsys.readouterr().out)
        named = re.findall(r"(?<!\S)(?:-o|--[a-z0-9-]+)", rest)
        unknown += [f"{package} {command} {flag}" for flag in named if flag not in known]
    assert unknown == []


def test_commands_are_named_as_they_are_typed() -> None:
    """In READMEs, notebooks and messages."""
    texts = [*READMES, *ROOT.glob("notebooks/*.ipynb")]
    texts += [path for package in MAINS for path in (ROOT / package).rglob("*.py")]
    verbs = "build|check|show|compare|run|profile|estimate|sweep|lengths|export"
    command = re.compile(rf"(?<!-m )(?:`|run |with |: |; )(?:planner|executor) (?:{verbs})\b")
    named = [(path.name, found) for path in texts for found in command.findall(path.read_text())]
    assert named == []


def test_the_version_is_that_of_the_changelog() -> None:
    """The latest one there is the package's."""
    latest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest
    assert f'version = "{latest[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_commands_run_beside_folders_with_names_of_packages(tmp_path: Path) -> None:
    """As in README's examples, which write to profiles/, plans/ and runs/ wherever they start."""
    for name in ("profiles", "plans", "runs"):
        (tmp_path / name).mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "planner", "check", str(ROOT / "plans" / "sample.json")]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
