"""Activation checkpointing inside a model is left out: a plan says itself what is computed again.

torch.utils.checkpoint runs a function again in the backward. Where Gantry runs a model's code, the
function is called as it stands, after it was seen that this changes no bit.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from torch.utils import checkpoint

TOLD = "checkpointing inside the model is left out: the plan says what is computed again"


class Seen:
    """Counts the calls that were left out."""

    calls = 0


class _Direct:
    """Instead of torch's function with a backward of its own (reentrant)."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        _note()
        return function(*args)


def _nothing(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Instead of what torch does around a function (not reentrant)."""
    _note()
    yield


_REENTRANT, _AROUND = "CheckpointFunction", "_checkpoint_without_reentrant_generator"
_TORCHS = {name: getattr(checkpoint, name) for name in (_REENTRANT, _AROUND)}
_OURS = {_REENTRANT: _Direct, _AROUND: _nothing}

_LOCK = Lock()
_active: list[Seen] = []


def _note() -> None:
    for seen in _active:
        seen.calls += 1


@contextmanager
def left_out() -> Iterator[Seen]:
    """While active, in all threads, torch.utils.checkpoint only calls its function."""
    seen = Seen()
    with _LOCK:
        vars(checkpoint).update(_OURS)
        _active.append(seen)
    try:
        yield seen
    finally:
        with _LOCK:
            _active.remove(seen)
            if not _active:
                vars(checkpoint).update(_TORCHS)


@contextmanager
def as_ever() -> Iterator[None]:
    """While active inside of `left_out`, it does what it always does."""
    vars(checkpoint).update(_TORCHS)
    try:
        yield
    finally:
        vars(checkpoint).update(_OURS)
