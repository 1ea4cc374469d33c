"""Who imports whom in the packages of this project, read from the source: nothing is imported."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "plans", "planner", "executor")


@cache
def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name; packages by their own."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def _all() -> dict[str, Path]:
    return {name: path for package in PACKAGES for name, path in modules(package).items()}


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_all()[module].read_text())


@cache
def _exports(package: str) -> dict[str, str]:
    """Where a package's face finds the names that it exports: name -> module that defines it."""
    found = {}
    for node in ast.walk(_tree(package)):
        if isinstance(node, ast.ImportFrom) and node.module in _all():
            for alias in node.names:
                found[alias.asname or alias.name] = _home(node.module, alias.name)
    return found


def is_face(module: str) -> bool:
    """True for a package's `__init__`, whose imports are its face."""
    return _all()[module].name == "__init__.py"


def _home(module: str, name: str) -> str:
    """The module that `from module import name` loads the name from, through faces."""
    if f"{module}.{name}" in _all():
        return f"{module}.{name}"
    if is_face(module) and name in _exports(module):
        return _exports(module)[name]
    return module


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of this project that a module imports, also within functions and for types only."""
    found = set()
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module in _all():
            found |= {_home(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in _all()}
    return frozenset(found - {module})


def reach(*starts: str) -> frozenset[str]:
    """Modules that are loaded with these, at once or later."""
    seen: set[str] = set()
    todo = list(starts)
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += imports(module)
    return frozenset(seen)


def room(module: str) -> str:
    """The folder of a module: `planner.rounds` of `planner.rounds.emit`, else the module."""
    return module.rpartition(".")[0] if module.count(".") > 1 else module


def past_faces(module: str) -> list[str]:
    """Imports at the head of a module from inside another room, where that room has a face."""
    found = []
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module in _all():
            home = node.module
            within = room(home) in (room(module), module) or is_face(home)
            within = within or room(module).startswith(f"{room(home)}.")  # a room within a room
            if not within and room(home) != home:
                found.append(f"from {home} import ...")
    return found
