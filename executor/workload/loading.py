"""Loads workloads: from `file.py:function` or `hf:name` to a list of tasks."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from torch import nn

from executor.errors import MismatchError, WorkloadError, one_line
from executor.workload import huggingface
from executor.workload.fingerprint import built_fingerprint, fingerprint_of, settings_of
from executor.workload.sweep import Sweep
from executor.workload.task import Task, checked
from profiles import console
from profiles.codec import sha256
from profiles.schema import Workload

Made = nn.Module | Callable[[], nn.Module]

_PREFIX = "workload_"  # of the names of modules that are files
NO_CACHE = "#no-cache"  # at the end of a reference


def load(ref: str) -> tuple[list[Task], dict[str, str]]:
    """The tasks of `file.py:function` or `package.module:function`, and by name the fingerprint of
    each, see `fingerprint_of`.

    The function is called without arguments. `hf:name` is a model of Hugging Face, see
    executor/workload/huggingface.py. `#no-cache` behind any of them: see `caching`. WorkloadError
    says in one line what is wrong."""
    tasks = _tasks(ref)
    return tasks, {task.name: fingerprint_of(task) for task in tasks}


def load_sweep(ref: str, asked: Mapping[str, Any]) -> Sweep:
    """The sweep that `file.py:function` returns, as it is there now, or one of the tasks that it
    returns, of which so much is `asked`; WorkloadError where there is none."""
    made = _called(ref.removesuffix(NO_CACHE))
    if not isinstance(made, Sweep) and "rungs" in asked:
        return Sweep(checked(ref, made), **asked)
    if not isinstance(made, Sweep):
        kind = type(made).__name__
        raise WorkloadError(
            f"{ref}: returned {kind}, no executor.Sweep; return one, or add --rungs 100,300,900"
        )
    for name in asked:
        raise WorkloadError(f"{ref}: its sweep says its own {name}; leave out --{name}")
    return made


def _tasks(ref: str) -> list[Task]:
    if ref.endswith(NO_CACHE):
        tasks = _tasks(ref.removesuffix(NO_CACHE))
        return [replace(task, model=partial(_without_cache, task.model)) for task in tasks]
    if ref.startswith("hf:"):
        return checked(ref, huggingface.load(ref))
    made = _called(ref)
    try:
        return checked(ref, made.tasks() if isinstance(made, Sweep) else made)
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(f"{ref}: a task of the sweep: {one_line(error)}") from error


def _called(ref: str) -> object:
    """The value of the function."""
    where, colon, name = ref.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise WorkloadError(
            f"{ref}: a workload is file.py:function or package.module:function; give one of these"
        )
    source = _source(ref, where)
    function = getattr(_module(ref, where, source), name, None)
    if not callable(function):
        raise WorkloadError(f"{ref}: {source} has no function {name!r}; give one that it has")
    try:
        return function()
    except Exception as error:
        text = f"{ref}: {name}() raised {one_line(error)}; call it in plain Python to see where"
        raise WorkloadError(text) from error


class Wanted(Protocol):
    """A task of a plan, as far as it says whose task of the user it is."""

    @property
    def name(self) -> str: ...
    @property
    def workload(self) -> Workload: ...
    @property
    def done(self) -> int: ...


def load_tasks(wanted: Iterable[Wanted], *, trust: bool = False) -> list[Task]:
    """The tasks of a plan from their workloads. To build the model of one that is not as the plan
    was made for is a MismatchError; `trust`: a warning."""
    loaded: dict[str, tuple[dict[str, Task], dict[str, str]]] = {}
    found = []
    for one in wanted:
        ref = one.workload.ref
        if ref not in loaded:
            tasks, said = load(ref)
            loaded[ref] = {task.name: task for task in tasks}, said
        named, said = loaded[ref]
        if one.name not in named:
            raise MismatchError(
                f"{ref}: has no task {one.name}, only {', '.join(named)}; profile and build again"
            )
        task = named[one.name]
        compared = partial(_compared, task, said[one.name], one.workload, trust)
        found.append(replace(task, model=compared))
    return found


def _compared(task: Task, said: str, wanted: Workload, trust: bool) -> nn.Module:
    """The model of a task with the fingerprint `said`."""
    model = _made(task.model)
    found = built_fingerprint(said, model.train()) if isinstance(model, nn.Module) else said
    if isinstance(model, nn.Module) and found != wanted.sha256:  # or whoever builds it says so
        text = (
            f"{wanted.ref}: task {task.name} is not as the plan was made for: "
            f"{_others(task, wanted)} (sha256 {found[:12]}…, {wanted.sha256[:12]}… in the plan)"
        )
        if not trust:
            again = "profile and build again, or add --trust-workload if it trains the same"
            raise MismatchError(f"{text}; {again}")
        console.warn(f"{text}; it is trusted")
    return model


def _others(task: Task, wanted: Workload) -> str:
    """The settings of the task that are others than wanted, as far as these are known."""
    known, now = wanted.settings, settings_of(task)
    if not known:
        return "its settings, its model or code that they call are others"
    names = [name for name in known | now if known.get(name) != now.get(name)]
    if not names:
        return "the model that is built is another one"
    what = ", ".join(f"its {name}" for name in names)
    return f"{what}, or code that {'they call' if names[1:] else 'it calls'}, changed"


def caching(model: nn.Module) -> list[Any]:
    """The configs of transformers by which the model keeps keys and values of each forward for a
    next one, which training does not have. Without, kernels may give other bits."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [config for config in configs.values() if getattr(config, "use_cache", False) is True]


def _made(made: Made) -> nn.Module:
    return made if isinstance(made, nn.Module) else made()


def _without_cache(made: Made) -> nn.Module:
    model = _made(made)
    if isinstance(model, nn.Module):  # or whoever builds it says so
        for config in caching(model):
            config.use_cache = False
    return model


def _source(ref: str, where: str) -> Path:
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise WorkloadError(f"{ref}: there is no file {where} in {Path.cwd()}; give its path")
        return path
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError, AttributeError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise WorkloadError(
            f"{ref}: there is no module {where}; give one, or a file's name, which ends in .py"
        )
    return Path(spec.origin)


def _module(ref: str, where: str, source: Path) -> ModuleType:
    try:
        if not where.endswith(".py"):
            return importlib.import_module(where)
        folder = str(source.resolve().parent)
        if folder not in sys.path:  # so that a workload can import its neighbours, like a script
            sys.path.append(folder)
        return _loaded(f"{_PREFIX}{sha256(str(source.resolve()).encode())[:12]}", source)
    except (Exception, SystemExit) as error:
        text = (
            f"{ref}: importing {source} raised {one_line(error)}; import it in plain Python to see"
        )
        raise WorkloadError(f"{text} where") from error


def _loaded(name: str, source: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Sources:
    """Sent to another process before objects of workloads it lets their files be loaded there."""

    def __reduce__(self) -> tuple[Any, ...]:
        own = {name: one for name, one in sys.modules.items() if name.startswith(_PREFIX)}
        return _sources, ({name: str(one.__file__) for name, one in own.items()},)


def _sources(files: dict[str, str]) -> Sources:
    for name, file in files.items():
        if name not in sys.modules:
            _loaded(name, Path(file))
    return Sources()
