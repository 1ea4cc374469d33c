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


def imports(module: str, *, lazy: bool = True) -> set[str]:
    """The project's modules that this one names in its imports, `lazy` ones in functions too; not
    those that only a type checker sees."""
    file = file_of(module)
    assert file is not None, module
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found = _named(ast.parse(file.read_text()), package, lazy)
    return {name for name in found if file_of(name)}


def reaches(module: str) -> set[str]:
    """All of the project's modules that importing this one may bring along, itself included.

    Of the packages above a module only what they import at once counts."""
    found: set[str] = set()
    above: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name in found:
            continue
        found.add(name)
        queue += imports(name)
        parts = name.split(".")
        for package in {".".join(parts[:end]) for end in range(1, len(parts))} - above:
            above.add(package)
            queue += imports(package, lazy=False)
    return found | above


def lines(modules: set[str]) -> int:
    """The lines of these modules' files."""
    files = {file for module in modules if (file := file_of(module))}
    return sum(len(file.read_text().splitlines()) for file in files)


def _named(tree: ast.AST, package: str, lazy: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from _named(other, package, lazy)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *filter(None, [node.module])]) if node.level else node.module
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield name if file_of(name) else str(base)
        elif lazy or not isinstance(node, ast.FunctionDef):
            yield from _named(node, package, lazy)
