"""Parts of torch's compiler, loaded when something is compiled.

The first step of an optimizer and the first backward would load them, which takes a process as long
as all of torch does, to hear that nothing is compiled and that sizes are plain numbers.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any


class _Late(ModuleType):
    """Stands for a module until it is asked for more than it knows. lacks: what it is asked for by
    who looks through all modules, or imports from it."""

    def __init__(self, name: str, lacks: Collection[str], **known: Any) -> None:
        super().__init__(name)
        self._lacks = lacks
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(name)
        return getattr(self._module(), name)

    def _module(self) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)

    @property
    def _waits(self) -> bool:
        return sys.modules.get(self.__name__, self) is self


def _disable(fn: Any = None, *rest: Any, **more: Any) -> Any:
    """The function, never compiled, also when others are later on."""
    if not isinstance(fn, FunctionType):
        return _COMPILER._module().disable(fn, *rest, **more)
    disabled: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if _COMPILER._waits:
            return fn(*args, **kwargs)
        if not disabled:
            disabled.append(_COMPILER._module().disable(fn, *rest, **more))
        return disabled[0](*args, **kwargs)

    return call


def _nothing(*_: object, **__: object) -> None:
    """Nothing is compiled, so there is no graph to break."""


_COMPILER = _Late("torch._dynamo", {"__file__"}, graph_break=_nothing, disable=_disable)
_SIZES = _Late(
    "torch.fx.experimental.symbolic_shapes",
    {"__file__", "__path__"},
    expect_true=lambda value, skip=0: value,
    sym_eq=lambda one, other: one == other,
)


@contextmanager
def compiler() -> Iterator[None]:
    """Meanwhile it is loaded by who compiles something, and by nobody else."""
    import_module("torch.fx.experimental")
    for late in (_COMPILER, _SIZES):
        sys.modules.setdefault(late.__name__, late)
    try:
        yield
    finally:
        for late in (_COMPILER, _SIZES):
            if sys.modules.get(late.__name__) is late:
                del sys.modules[late.__name__]
