"""Fingerprints of tasks: the same wherever and whenever a task is loaded, another where it trains
something else.

Of code counts what it does: the syntax trees of functions, without comments, docstrings,
annotations and places, in files that are neither Python's own nor an installed package's. So
neither another process nor another version of torch has another one. What a function reads counts
with it: functions, classes, constants, modules of the user's own. Of large arrays count type and
shape, of absolute paths the last name, of a library's objects settings alone.
"""

import ast
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from enum import Enum
from functools import cached_property, lru_cache, partial
from hashlib import sha256
from pathlib import Path, PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from executor.workload.task import Task

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_PRINTED = (torch.dtype, torch.device, torch.memory_format, torch.layout, np.dtype, range, slice)
_CONTENT_BYTES = 1 << 14  # up to which the values of an array count
_UNSAID = ("annotation", "returns", "type_comment", "type_params", "ctx", "kind")  # of syntax
_OWN = ("executor", "plans", "profiles")  # but for the workloads among them
_HELD = ("to_dict", "model_dump", "__dataclass_fields__", "__struct_fields__")  # of settings
_MADE = ("_abc_impl", "_member_map_", "_member_names_", "_value2member_map_")


def fingerprint_of(task: Task) -> str:
    """A sha256 of a task's settings and code, as far as both are known before its model is built.

    Lengths are left out: a plan has their own sha256. So are settings that nobody has made, so that
    a new one does not change the fingerprints of those who do not know it."""
    walk = _Walk()
    for name, given in _settings(task):
        walk.value(name)
        walk.value(given)
    return walk.digest()


def settings_of(task: Task) -> dict[str, str]:
    """The first digits of a sha256 of each of these settings."""
    found = {}
    for name, given in _settings(task):
        walk = _Walk()
        walk.value(given)
        found[name] = walk.digest()[:8]
    return found


def _settings(task: Task) -> Iterator[tuple[str, Any]]:
    for field in fields(task):
        given = getattr(task, field.name)
        said = type(given) not in _PLAIN or given != field.default
        if said and field.name != "lengths":
            yield field.name, given


def built_fingerprint(said: str, model: nn.Module) -> str:
    """A sha256 of a task with the fingerprint `said`, and of the model that was built for it: its
    modules with their code and settings, its parameters and buffers with names, shapes, types."""
    walk = _Walk()
    walk.value(said)
    walk.value(model)
    return walk.digest()


class _Walk:
    """Goes through values, and from functions to what they read."""

    def __init__(self, seen: Mapping[int, int] | None = None) -> None:
        self._hash = sha256()
        self._seen = dict(seen or {})
        self._kept: list[object] = []  # so that nothing else takes the id of one that was seen
        self._ways: tuple[tuple[Any, Callable[[Any], None]], ...] = (
            (Mapping, lambda given: self._row(given.items())),
            (list | deque, self._row),
            (set, self._set),
            (Tensor | np.ndarray | np.generic, self._array),
            (nn.Module, self._model),
            (FunctionType, self._function),
            (MethodType, lambda given: self._row((given.__func__, given.__self__))),
            (partial, lambda given: self._row((given.func, given.args, given.keywords))),
            (staticmethod | classmethod, lambda given: self.value(given.__func__)),
            (property, lambda given: self._row((given.fget, given.fset))),
            (cached_property, lambda given: self.value(given.func)),
            (type, self._class),
            (ModuleType, lambda given: self._say(_top(given.__name__))),
        )

    def digest(self) -> str:
        return self._hash.hexdigest()

    def _say(self, *texts: str) -> None:
        for text in texts:
            data = text.encode(errors="surrogatepass")
            self._hash.update(b"%d:%b" % (len(data), data))

    def value(self, given: Any) -> None:
        """Any value, with all that it holds; one that was seen before by its number."""
        if type(given) in _PLAIN:
            absolute = isinstance(given, str) and os.path.isabs(given)
            self._say(type(given).__name__, os.path.basename(given) if absolute else repr(given))
        elif isinstance(given, Enum):
            self._say(type(given).__qualname__, given.name)
        elif isinstance(given, _PRINTED):
            self._say(repr(given))
        elif isinstance(given, PurePath):
            self._say("path", given.name)
        elif isinstance(given, tuple):
            self._row(given)
        elif isinstance(given, frozenset):
            self._set(given)
        elif id(given) in self._seen:
            self._say("seen", str(self._seen[id(given)]))
        else:
            self._seen[id(given)] = len(self._seen)
            self._kept.append(given)
            ways = (way for kind, way in self._ways if isinstance(given, kind))
            next(ways, self._object)(given)

    def _row(self, given: Iterable[Any]) -> None:
        row = list(given)
        self._say("row", str(len(row)))
        for one in row:
            self.value(one)

    def _set(self, given: Iterable[Any]) -> None:
        digests = []
        for one in given:
            walk = _Walk(self._seen)
            walk.value(one)
            digests.append(walk.digest())
        self._say("set", *sorted(digests))

    def _array(self, given: Any) -> None:
        tensor = given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
        self._say(str(tensor.dtype), str(list(tensor.shape)))
        plain = tensor.layout == torch.strided and tensor.device.type != "meta"
        if plain and tensor.numel() * tensor.element_size() <= _CONTENT_BYTES:
            data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
            self._say(data.numpy().tobytes().hex())

    def _class(self, given: type) -> None:
        self._say("class", _name(given))
        if _foreign(given):
            return
        for base in given.__mro__[1:]:
            self.value(base)
        for name, member in sorted(vars(given).items()):
            hidden = name.startswith("__") and not isinstance(member, FunctionType)
            if not hidden and name not in _MADE:
                self._say(name)
                self.value(member)

    def _model(self, given: nn.Module) -> None:
        for name, module in given.named_modules(remove_duplicate=False):
            self._say("module", name)
            self.value(type(module))
            self._say(re.sub(r" at 0x[0-9a-fA-F]+", "", module.extra_repr()))
            if _top(type(module).__module__) != "torch":  # which says in extra_repr what counts
                self._public(module)
        numbers: dict[int, int] = {}
        for kind in (given.named_parameters, given.named_buffers):
            for name, tensor in kind(remove_duplicate=False):
                number = numbers.setdefault(id(tensor), len(numbers))
                self._say(name, str(number), str(tensor.dtype), str(list(tensor.shape)))
                self._say(str(tensor.requires_grad))

    def _public(self, given: object) -> None:
        """An object's own public attributes."""
        names = getattr(type(given), "__struct_fields__", None) or sorted(vars(given))
        for name in names:
            if not name.startswith("_") and name != "training":
                self._say(name)
                self.value(getattr(given, name))

    def _object(self, given: object) -> None:
        own = getattr(given, "__dict__", {})
        self.value(type(given))
        if hasattr(given, "__qualname__"):
            self._say(_name(given))  # of a function in C
        elif not _foreign(type(given)):
            self._row(sorted(own.items()))
        elif isinstance(given, SimpleNamespace) or any(hasattr(type(given), n) for n in _HELD):
            self._public(given)
        if "__wrapped__" in own:
            self.value(own["__wrapped__"])

    def _function(self, given: FunctionType) -> None:
        self._say("function", _name(given))
        if _foreign(given):
            if "__wrapped__" in vars(given):
                self.value(given.__wrapped__)  # type: ignore[attr-defined]
            return
        nodes = _nodes(given.__code__)
        if not nodes:
            if not given.__name__.startswith("__"):  # or a dataclass' own
                self._code(given.__code__)
            return
        self.value((given.__defaults__, given.__kwdefaults__))
        known = _known(given, nodes)
        reads = {read for node in nodes for read in _reads(node) if read[0] in known}
        for node in nodes:
            self._say(*_syntax(node))
        for first, *rest in sorted(reads):
            self._say(".".join([first, *rest]))
            self.value(_followed(known[first], rest))

    def _code(self, given: CodeType) -> None:
        """The code of a function without source."""
        consts = [const for const in given.co_consts if not isinstance(const, CodeType)]
        self.value((given.co_code, given.co_names, consts))
        for const in given.co_consts:
            if isinstance(const, CodeType):
                self._code(const)


def _top(module: str) -> str:
    return module.partition(".")[0]


def _name(given: Any) -> str:
    """The name; with its package of what belongs to somebody else: a user's own module may have
    any name."""
    name = str(given.__qualname__)
    return f"{_top(getattr(given, '__module__', '') or '')}:{name}" if _foreign(given) else name


def _foreign(given: Any) -> bool:
    """True for a function or class of Python, of an installed package or of Gantry."""
    module = getattr(given, "__module__", None) or "builtins"
    found = sys.modules.get(module)
    code = getattr(given, "__code__", None)
    file = getattr(found, "__file__", None) or getattr(code, "co_filename", None)
    return _foreign_module(module, file or ("" if module == "__main__" else None))


def _foreign_module(module: str, file: str | None) -> bool:
    if module.startswith("executor.workloads."):
        return False
    if _top(module) in (*_OWN, "torch") or _top(module) in sys.stdlib_module_names:
        return True
    return file is None or bool({"site-packages", "dist-packages"} & set(Path(file).parts))


@lru_cache(maxsize=64)
def _functions(text: str) -> dict[tuple[int, str], list[Node]]:
    """The functions of a source by their first line and name; of a line may be several lambdas."""
    found: dict[tuple[int, str], list[Node]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Node):
            lines = [node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]
            key = min(lines), getattr(node, "name", "<lambda>")
            found.setdefault(key, []).append(node)
    return found


def _nodes(code: CodeType) -> list[Node]:
    """The syntax of a function; none where its source is not to be had."""
    try:
        text = importlib.util.decode_source(Path(code.co_filename).read_bytes())
    except OSError:
        text = "".join(linecache.getlines(code.co_filename))  # of a notebook's cell
    try:
        return _functions(text).get((code.co_firstlineno, code.co_name), [])
    except (SyntaxError, ValueError):
        return []


def _children(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """The parts of a piece of syntax that say what it does, none of them empty."""
    for name in node._fields:
        part = getattr(node, name, None)
        if name == "body" and isinstance(part, list) and _documents(part[0]):
            part = part[1:]
        if name not in _UNSAID and part is not None and part != []:
            yield name, part


def _documents(node: ast.AST) -> bool:
    held = node.value if isinstance(node, ast.Expr) else None
    return isinstance(held, ast.Constant) and isinstance(held.value, str)


def _syntax(node: Any) -> Iterator[str]:
    """A piece of syntax in words, the same in all versions of Python that have it."""
    if isinstance(node, ast.AST):
        yield f"<{type(node).__name__}"
        for name, part in _children(node):
            yield name
            yield from _syntax(part)
        yield ">"
    elif isinstance(node, list):
        yield f"[{len(node)}"
        for one in node:
            yield from _syntax(one)
    else:
        yield repr(node)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """A piece of syntax and all in it that says what it does."""
    yield node
    for _, part in _children(node):
        for one in part if isinstance(part, list) else [part]:
            if isinstance(one, ast.AST):
                yield from _within(one)


def _reads(node: ast.AST) -> Iterator[tuple[str, ...]]:
    """The names that are read in it, with their attributes: `a`, `a.b`."""
    for one in _within(node):
        names: list[str] = []
        while isinstance(one, ast.Attribute):
            names.insert(0, one.attr)
            one = one.value
        if isinstance(one, ast.Name):
            yield (one.id, *names)


def _known(function: FunctionType, nodes: Iterable[Node]) -> dict[str, Any]:
    """The values of a function's names: of its module, of functions around it, imported in it."""
    code = function.__code__
    local = {*code.co_varnames, *code.co_cellvars}
    known = {name: v for name, v in function.__globals__.items() if name not in local}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not yet there
            known.pop(name, None)
    package = str(function.__globals__.get("__package__") or "")
    for node in nodes:
        for one in _within(node):
            if isinstance(one, ast.Import | ast.ImportFrom):
                known |= _imported(one, package)
    return known


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> dict[str, Any]:
    """The names that an import within a function gives, of the user's own modules."""
    found: dict[str, Any] = {}
    for alias in node.names:
        if isinstance(node, ast.Import):
            module = _module(alias.name)
            top = module if alias.asname else sys.modules.get(_top(alias.name))
            found[alias.asname or _top(alias.name)] = top if module else None
        else:
            whole = "." * node.level + (node.module or "")
            name = importlib.util.resolve_name(whole, package) if node.level else whole
            within = _module(name)
            value = getattr(within, alias.name, None) if within else None
            if within and value is None:
                value = _module(f"{name}.{alias.name}")
            found[alias.asname or alias.name] = value
    return {name: value for name, value in found.items() if value is not None}


def _module(name: str) -> ModuleType | None:
    """A module of the user's own, loaded."""
    try:
        top = sys.modules.get(_top(name))
        spec = getattr(top, "__spec__", None) or importlib.util.find_spec(_top(name))
        where = list(getattr(spec, "submodule_search_locations", None) or [])
        if _foreign_module(name, getattr(spec, "origin", None) or (where or [None])[0]):
            return None
        return importlib.import_module(name)
    except Exception:  # it is there that the model is built that this is said
        return None


def _followed(value: Any, names: Iterable[str]) -> Any:
    """The value in the user's own modules behind these names."""
    for name in names:
        if not inspect.ismodule(value) or _foreign_module(
            value.__name__, getattr(value, "__file__", None) or ""
        ):
            break
        value = getattr(value, name, None)
    return value
