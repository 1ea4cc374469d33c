"""Who may import whom: rooms only downwards, no circles, planner without torch, executor without
solver, formats without either; and every room has its tests."""

import subprocess
import sys
from collections import Counter

import networkx as nx
import pytest
from support.imports import PACKAGES, ROOT, imports, is_face, modules, past_faces, reach

import executor

FORBIDDEN = {
    "planner": ["torch", "executor"],
    "executor": ["pulp", "highspy", "numba", "networkx", "matplotlib", "planner"],
    "profiles": [
        "torch",
        "pulp",
        "highspy",
        "numba",
        "networkx",
        "matplotlib",
        "planner",
        "executor",
    ],
    "plans": ["torch", "pulp", "highspy", "numba", "networkx", "matplotlib", "planner", "executor"],
}

# What each room (or file beside the rooms) may import of its own package, besides `errors`.
MAY_IMPORT = {
    "planner": {
        "inputs": "",
        "processes": "inputs",
        "estimate": "",
        "views": "",
        "charts": "surviving views",
        "exporting": "views orders",
        "report": "charts curves views",
        "shards": "inputs",
        "rounds": "shards inputs",
        "orders": "",
        "packing": "processes shards inputs",
        "bounds": "processes packing rounds shards inputs",
        "sequences": "packing pipelines search lowering bounds rounds orders shards inputs",
        "search": "processes lowering bounds rounds shards inputs",
        "lowering": "rounds orders shards inputs",
        "pipelines": "lowering bounds search rounds orders shards inputs",
        "timetable": "pipelines search lowering bounds rounds shards inputs",
        "exploring": "timetable search bounds inputs",
        "bases": "rounds shards inputs",
        "builder": "bases exploring timetable sequences pipelines search lowering bounds rounds "
        "shards inputs",
        "booking": "builder processes inputs",
        "surviving": "",
        "curves": "",
        "sweep": "sweep_table builder shards inputs",
        "sweep_table": "",
        "face": "sweep builder estimate views inputs",
        "cli": "report booking curves surviving sweep_table sweep builder estimate charts "
        "exporting views inputs",
        "__main__": "cli",
    },
    "executor": {
        "outputs": "",
        "late": "",
        "numerics": "",
        "devices": "numerics",
        "optim": "numerics",
        "workload": "optim devices numerics",
        "workloads": "workload",
        "cutting": "workload numerics",
        "shards": "workload optim devices numerics outputs",
        "replay": "shards workload optim devices numerics",
        "conducting": "replay shards devices",
        "records": "replay shards outputs",
        "shapes": "cutting shards workload numerics",
        "driver": "late conducting records replay shards workload optim devices numerics outputs",
        "profiling": "cutting records shards workload optim devices numerics outputs",
        "distributed": "driver conducting records replay shards workload optim devices numerics",
        "processes": "distributed conducting cutting records workload",
        "report": "records replay",
        "books": "devices replay",
        "standings": "workload",
        "tuning": "standings workload records",
        "cli": "tuning standings books processes report driver records profiling workload",
        "__main__": "cli",
    },
    "plans": {
        "prediction": "",
        "ops": "",
        "schema": "ops prediction ties",
        "graph": "schema",
        "additions": "graph ops schema",
        "ties": "",
        "samples": "",
        "runlog": "additions",
        "timing": "ops schema",
        "view": "timing schema",
        "order": "view timing ops schema",
        "part": "order schema",
        "trace": "runlog timing schema",
        "checker": "order view timing additions graph samples ops schema prediction",
        "__main__": "runlog schema",
    },
}
# Rooms whose tests are in another folder.
ELSEWHERE = {"planner.cli": "whole", "executor.workloads": "executor/workload"}
LONGEST = {"planner": 19, "executor": 17}  # files in a chain of imports


def _short(module: str) -> str:
    """`rounds` for `planner.rounds.emit`, `builder` for `planner.builder`."""
    return module.split(".")[1] if "." in module else module


def _arrows(package: str) -> list[tuple[str, str]]:
    """Who imports whom within a package, from file to file, through faces."""
    return [
        (module, target)
        for module in modules(package)
        if not is_face(module)
        for target in sorted(imports(module))
        if target.startswith(f"{package}.") and not is_face(target)
    ]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_rooms_import_only_downwards(package: str) -> None:
    """Every import between rooms is one that the table allows."""
    rules = MAY_IMPORT[package]
    for module, target in _arrows(package):
        mine, other = _short(module), _short(target)
        allowed = {mine, "errors", *rules.get(mine, "").split()}
        assert other in allowed, f"{module} imports {target}"


@pytest.mark.parametrize("package", PACKAGES)
def test_other_rooms_use_a_room_by_its_face(package: str) -> None:
    """What a module imports at its head from another room stands in that room's `__init__`."""
    for module in modules(package):
        assert not past_faces(module), f"{module}: {past_faces(module)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_imports_itself_by_a_detour(package: str) -> None:
    """Imports within a package have no circle, also those for types only and within functions."""
    assert nx.is_directed_acyclic_graph(nx.DiGraph(_arrows(package)))


@pytest.mark.parametrize("package", sorted(LONGEST))
def test_chains_of_imports_are_short(package: str) -> None:
    """From a command to the deepest file it is no more than so many files."""
    chain = nx.dag_longest_path(nx.DiGraph(_arrows(package)))
    assert len(chain) <= LONGEST[package], " -> ".join(chain)


def test_a_run_neither_cuts_nor_measures() -> None:
    """Nothing that replays a plan can reach the code that takes models apart or profiles them."""
    reached = reach("executor.driver")
    assert not {m for m in reached if _short(m) in ("cutting", "profiling")}


def test_one_room_knows_gpus() -> None:
    """Elsewhere nothing names CUDA but where a user types it or the formats say it."""
    told = {"executor.cli", "executor.profiling.model_checks", "profiles.schema"}
    files = {name: path for p in PACKAGES for name, path in modules(p).items()}
    named = {name for name, path in files.items() if "cuda" in path.read_text().lower()}
    assert {name for name in named if not name.startswith("executor.devices")} == told


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_are_small(package: str) -> None:
    """A room, and a package beside its rooms, has at most 12 files beside its face."""
    files = Counter(m.rpartition(".")[0] for m in modules(package) if not is_face(m))
    assert not {name: count for name, count in files.items() if count > 12}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_its_tests(package: str) -> None:
    """In tests/<package>/<room>, or where a table says."""
    rooms = {m.split(".")[1] for m in modules(package) if m.count(".") > 1}
    for room in rooms:
        folder = ROOT / "tests" / ELSEWHERE.get(f"{package}.{room}", f"{package}/{room}")
        assert any(folder.glob("**/test_*.py")), f"{package}.{room}"


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_every_module_imports_without_what_its_package_must_not_use(package: str) -> None:
    """With the forbidden packages made unimportable, every module of the package still imports."""
    if package == "executor":
        pytest.importorskip("torch")
    names = [name for name in modules(package) if not name.endswith("__main__")]
    script = (
        f"import sys, importlib\nfor name in {FORBIDDEN[package]!r}: sys.modules[name] = None\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_executors_face_is_quick_to_load_and_says_what_it_is() -> None:
    """Its names are there without torch until one is used, and each has a docstring."""
    pytest.importorskip("torch")
    script = "import sys\nfrom executor import profile, run\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    assert all(getattr(executor, name).__doc__ for name in executor.__all__)
