"""Loads workloads: from `file.py:function` or `hf:name` to a list of tasks."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from torch import nn

from executor.errors import MismatchError, WorkloadError, one_line
from executor.workload import huggingface
from executor.workload.task import Task, checked
from profiles.codec import read_bytes, sha256
from profiles.schema import Workload

NO_CACHE = "#no-cache"  # at the end of a reference


def load(ref: str, expected: str = "") -> tuple[list[Task], str]:
    """The tasks of `file.py:function` or `package.module:function`, and the source's sha256.

    The function is called without arguments. `hf:name` is a model of Hugging Face, see
    executor/workload/huggingface.py. `#no-cache` behind any of them: see `caching`. WorkloadError
    says in one line what is wrong. With an `expected` sha256 nothing of another source runs:
    MismatchError."""
    if ref.endswith(NO_CACHE):
        tasks, digest = load(ref.removesuffix(NO_CACHE), expected)
        return [replace(task, model=partial(_without_cache, task.model)) for task in tasks], digest
    if ref.startswith("hf:"):
        tasks, digest = huggingface.load(ref)
        _compare(ref, digest, expected)
        return checked(ref, tasks), digest
    where, colon, name = ref.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise WorkloadError(f"{ref}: a workload is file.py:function or package.module:function")
    source = _source(ref, where)
    digest = sha256(read_bytes(source))
    _compare(ref, digest, expected)
    function = getattr(_module(ref, where, source), name, None)
    if not callable(function):
        raise WorkloadError(f"{ref}: {source} has no function {name!r}")
    try:
        tasks = function()
    except Exception as error:
        raise WorkloadError(f"{ref}: {name}() raised {one_line(error)}") from error
    return checked(ref, tasks), digest


class Wanted(Protocol):
    """A task of a plan, as far as it says whose task of the user it is."""

    @property
    def name(self) -> str: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def done(self) -> int: ...


def load_tasks(wanted: Iterable[Wanted]) -> list[Task]:
    """The tasks of a plan from their workloads, which must be those that it was made for."""
    loaded: dict[Workload, dict[str, Task]] = {}
    found = []
    for one in wanted:
        source = one.workload
        if source not in loaded:
            tasks, _ = load(source.ref, source.sha256)
            loaded[source] = {task.name: task for task in tasks}
        if one.name not in loaded[source]:
            names = ", ".join(loaded[source])
            raise MismatchError(f"{source.ref}: has no task {one.name}, only {names}")
        found.append(loaded[source][one.name])
    return found


def _compare(ref: str, digest: str, expected: str) -> None:
    if expected and digest != expected:
        raise MismatchError(
            f"{ref}: its sha256 is {digest}, the plan was made for {expected}; "
            "profile and build again"
        )


def caching(model: nn.Module) -> list[Any]:
    """The configs of transformers by which the model keeps keys and values of each forward for a
    next one, which training does not have. Without, kernels may give other bits."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [config for config in configs.values() if getattr(config, "use_cache", False) is True]


def _without_cache(made: nn.Module | Callable[[], nn.Module]) -> nn.Module:
    model = made if isinstance(made, nn.Module) else made()
    if isinstance(model, nn.Module):  # or whoever builds it says so
        for config in caching(model):
            config.use_cache = False
    return model


def _source(ref: str, where: str) -> Path:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise WorkloadError(f"{ref}: there is no file {where} in {Path.cwd()}")
        return path
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise WorkloadError(f"{ref}: there is no module {where}; a file's name ends in .py")
    return Path(spec.origin)


def _module(ref: str, where: str, source: Path) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        folder = str(source.resolve().parent)
        if folder not in sys.path:  # so that a workload can import its neighbours, like a script
            sys.path.append(folder)
        name = f"workload_{sha256(str(source.resolve()).encode())[:12]}"
        spec = importlib.util.spec_from_file_location(name, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise WorkloadError(f"{ref}: importing {source} raised {one_line(error)}") from error
    return module
