"""Pages name files that exist, commands that parse and code that compiles; and they are short."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

import plans
from executor.cli import main as executor_main
from planner.cli import main as planner_main
from profiles import console

ROOT = Path(plans.__file__).parents[1]
COMMANDS = ROOT / "docs" / "commands.md"  # is written by a command, and as long as it is
DOCS = sorted({*ROOT.glob("docs/*.md")} - {COMMANDS})
MAPS = sorted(ROOT.glob("*/README.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *MAPS, *DOCS]
MAINS: dict[str, Callable[[list[str]], int]] = {"planner": planner_main, "executor": executor_main}

LINES = {ROOT / "README.md": 150, ROOT / "CONTRIBUTING.md": 80}
LINES |= dict.fromkeys(MAPS, 60) | dict.fromkeys(DOCS, 150)
DOCS_LINES, OTHER_LINES = 1600, 600  # in all; the changelog is counted in neither

each = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def code(page: Path, language: str = "") -> list[str]:
    """The fenced blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[tuple[str, str]]:
    """Package and arguments of every command line: in backticks, which may go over two lines, or
    in a line of code, which may go on behind a backslash."""
    text = page.read_text().replace("\\\n", " ")
    inline = [" ".join(one.split()) for one in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    lines = [line.split("#")[0] for line in re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE)]
    found = [re.search(r"-m (planner|executor) ([a-z]+ .*)", one) for one in (*inline, *lines)]
    return [(one[1], one[2]) for one in found if one]


def anchors(page: Path) -> set[str]:
    """What links within a page may name: its headings as code hosts write them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each
def test_links_lead_somewhere(page: Path) -> None:
    """Links to pages, headings and pictures of this repository."""
    broken = []
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        target = page.parent / link if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{link}#{anchor}")
    assert broken == []


@each
def test_files_that_are_named_exist(page: Path) -> None:
    """Python and C files with their folder, from the root, or from the page's own folder."""
    text = page.read_text()
    files = re.findall(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|c)\b", text)
    files += [name.replace(".", "/") + ".py" for name in re.findall(r"-m (tests[\w.]+)", text)]
    homes = ROOT, page.parent, ROOT / "planner"
    assert [f for f in files if not any((home / f).exists() for home in homes)] == []


class Parsed(Exception):
    """A command line was understood."""


@each
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parsers of the commands, which then do nothing."""

    def dry(parser: console.Parser, arguments: list[str]) -> int:
        parser.parse_args(arguments)
        raise Parsed

    monkeypatch.setattr(console, "run", dry)
    refused = []
    for package, line in commands(page):
        try:
            MAINS[package](shlex.split(line))
        except Parsed:
            continue
        except SystemExit:
            refused.append(f"{package} {line}")
    assert refused == []


@each
def test_code_compiles(page: Path) -> None:
    """Every block of Python."""
    for number, block in enumerate(code(page, "python")):
        compile(block, f"{page.name}, block {number}", "exec")


@each
def test_a_page_is_short(page: Path) -> None:
    """No page has more lines than its kind may have."""
    assert len(page.read_text().splitlines()) <= LINES[page]


def test_all_pages_together_are_short() -> None:
    """Those for users, and all others."""
    lines = {page: len(page.read_text().splitlines()) for page in PAGES}
    docs = sum(lines[page] for page in DOCS)
    assert docs <= DOCS_LINES
    assert sum(lines.values()) - docs <= OTHER_LINES


def test_every_page_is_found_from_the_first() -> None:
    """README links to all of docs/."""
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in (*DOCS, COMMANDS) if f"(docs/{page.name})" not in text] == []


def test_commands_are_named_as_they_are_typed() -> None:
    """In pages, notebooks and messages."""
    texts = [*PAGES, *ROOT.glob("notebooks/*.ipynb")]
    texts += [path for package in MAINS for path in (ROOT / package).rglob("*.py")]
    verbs = "build|check|show|compare|run|profile|estimate|sweep|lengths|export"
    command = re.compile(rf"(?<!-m )(?:`|run |with |: |; )(?:planner|executor) (?:{verbs})\b")
    named = [(path.name, found) for path in texts for found in command.findall(path.read_text())]
    assert named == []


def test_the_page_of_commands_is_what_they_say() -> None:
    """make docs would change nothing."""
    made = runpy.run_path(str(COMMANDS.with_suffix(".py")))["page"]()
    assert COMMANDS.read_text() == made


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
