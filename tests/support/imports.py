"""Who imports whom, read from the sources: what a module brings along, lazy imports included."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def file_of(module: str) -> Path | None:
    """The source of one of this project's modules; None for anything else."""
    path = ROOT.joinpath(*module.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)


def imports(module: str) -> set[str]:
    """The project's modules that this one imports, packages above them included; not those that
    only a type checker sees."""
    file = file_of(module)
    assert file is not None, module
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return {name for name in _named(ast.parse(file.read_text()), package) if file_of(name)}


def reaches(module: str) -> set[str]:
    """All of the project's modules that importing this one may bring along, itself included."""
    found: set[str] = set()
    queue = [module]
    while queue:
        if (name := queue.pop()) not in found:
            found.add(name)
            queue += imports(name)
    return found


def lines(modules: set[str]) -> int:
    """The lines of these modules' files."""
    files = {file for module in modules if (file := file_of(module))}
    return sum(len(file.read_text().splitlines()) for file in files)


def _named(tree: ast.AST, package: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from _named(other, package)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])]) if node.level else node.module
            yield from _with_packages(str(base))
            yield from (f"{base}.{alias.name}" for alias in node.names)
        else:
            yield from _named(node, package)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])
