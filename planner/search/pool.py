"""The same function of many values, in as many processes as asked for.

Processes end with the command, however it ends: an interrupt is for the command alone, which then
ends them, and when the command is killed they end by themselves.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from planner.inputs import Effort
from profiles.console import heard

T = TypeVar("T")
R = TypeVar("R")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def each(
    function: Callable[[T, Effort], R],
    items: Sequence[T],
    effort: Effort,
    jobs: int,
    weight: Callable[[T], int] = lambda _: 1,
) -> list[R]:
    """The function of every item, in order. Both and what they return must be picklable where
    there are several jobs.

    Each item has a share of the time that is left when it begins, by its weight: what early ones do
    not use, later ones may.
    """
    heavy = [weight(item) for item in items]
    parts = (min(1, jobs * own / sum(heavy[at:])) for at, own in enumerate(heavy))
    begun = [partial(_begun, function, part) for part in parts]
    if jobs < 2 or len(items) < 2:
        return [one(item, effort) for one, item in zip(begun, items, strict=True)]
    others = active_children()
    with ProcessPoolExecutor(min(jobs, len(items)), get_context("spawn"), _follow) as pool:
        try:
            with _deaf():
                found = [
                    pool.submit(one, item, effort) for one, item in zip(begun, items, strict=True)
                ]
            return [one.result() for one in found]
        except BaseException:
            for process in active_children():
                if process not in others:
                    process.kill()
            raise


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that begin meanwhile never hear of an interrupt; this one does afterwards."""
    before, late = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS), list[int]()
    try:
        with heard(_ENDS, lambda number, _: late.append(number)):  # by way of another thread
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for number in late:
        signal.raise_signal(number)


def _follow() -> None:
    """In a process of the pool: end when the command has ended."""
    threading.Thread(target=_outlive, daemon=True).start()


def _outlive() -> None:
    command = parent_process()
    if command is not None:
        command.join()
        os._exit(1)


def _begun(function: Callable[[T, Effort], R], part: float, item: T, effort: Effort) -> R:
    """The function of an item that begins now, with this part of the time that is left."""
    share = max(0.0, effort.left) * part
    return function(item, replace(effort, deadline=time.monotonic() + share))
