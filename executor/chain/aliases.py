"""What an op does to the tensors that it is given, as its schema has it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._pytree import tree_leaves

Function = Callable[..., Any] | str


def changed(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Leaves of the arguments that the op changes in place; none for what has no schema."""
    return _aliased(function, args, kwargs, written=True)


def shown(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Leaves of the arguments whose memory the result may be in."""
    return _aliased(function, args, kwargs, written=False)


def _aliased(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any], *, written: bool
) -> list[Any]:
    schema = getattr(function, "_schema", None)
    found: list[Any] = []
    for position, argument in enumerate(schema.arguments if schema else ()):
        alias = argument.alias_info
        if alias is not None and (alias.is_write or not written):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            found += tree_leaves(given)
    return found
