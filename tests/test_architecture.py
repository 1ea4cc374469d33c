"""Who may import whom: planner without torch, executor without solver, formats without either."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FORBIDDEN = {
    "planner": ["torch", "executor"],
    "executor": ["pulp", "highspy", "networkx", "matplotlib", "planner"],
    "profiles": ["torch", "pulp", "highspy", "networkx", "matplotlib", "planner", "executor"],
    "plans": ["torch", "pulp", "highspy", "networkx", "matplotlib", "planner", "executor"],
}


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_every_module_imports_without_what_its_package_must_not_use(package: str) -> None:
    """With the forbidden packages made unimportable, every module of the package still imports."""
    if package == "executor":
        pytest.importorskip("torch")
    modules = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__main__.py"
    )
    assert modules
    script = (
        f"import sys, importlib\nfor name in {FORBIDDEN[package]!r}: sys.modules[name] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_guard_sees_a_stray_import() -> None:
    """The same mechanism does fail when a forbidden package is imported."""
    script = "import sys; sys.modules['networkx'] = None; import planner.build"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "networkx" in done.stderr


def test_the_face_of_the_planner_is_a_function() -> None:
    """Whether or not the module of the same name was imported before, and in any order."""
    for first in ("import planner.build", "from planner import build", "import planner.sweep"):
        script = f"{first}\nfrom planner import build\nassert build.__name__ == 'build', build"
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
