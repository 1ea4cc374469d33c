"""Who may import whom: planner without torch, executor without solver, formats without either."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.imports import file_of, reaches

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
    script = "import sys; sys.modules['networkx'] = None; import planner.builder"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert "networkx" in done.stderr


MEASURING = ("profiler", "task_profiler", "layer_profiler", "link_profiler", "disk_profiler")
TRYING = ("bench", "contention", "batch_check", "layer_check", "habits", "eval_mode", "explain")


def test_a_run_replays_and_does_not_measure() -> None:
    """Nothing that `run` may import, however late, belongs to `profile`."""
    measuring = {f"executor.{name}" for name in (*MEASURING, *TRYING)}
    assert all(file_of(name) for name in measuring)
    assert reaches("executor.profiling.profiler") > measuring - {"executor.profiling.explain"}
    assert not reaches("executor.replay") & measuring
