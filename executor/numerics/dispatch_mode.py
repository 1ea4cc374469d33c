"""Base class of the modes that see every operation that torch runs."""

from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class OpMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, each operation of this thread goes through `op`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.op(func, args, kwargs or {})

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation's result: func(*args, **kwargs), or something in its place."""
        raise NotImplementedError


@cache
def may_draw(func: Any) -> bool:
    """True if the operation may draw random numbers; its tags take longer to look through."""
    return torch.Tag.nondeterministic_seeded in func.tags
