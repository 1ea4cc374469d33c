"""The same function of many values, in several processes, also each with its share of time.

Processes end with the command, however it ends: an interrupt is for the command alone, which then
ends them, and when the command is killed they end by themselves.
"""

import gc
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

from planner.inputs import Effort
from profiles.console import heard

T = TypeVar("T")
R = TypeVar("R")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AHEAD = 64  # values that are begun while the first of them is waited for


def in_order(
    function: Callable[[T], R], values: Iterable[T], jobs: int
) -> Generator[R, None, None]:
    """The function of every value, in order, in so many processes, or in this one, which may be one
    of several itself. All of it must be picklable. Values are taken as they are needed; close the
    iterator if it is not used up."""
    if jobs < 2 or parent_process():
        yield from map(function, values)
        return
    others = active_children()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _follow) as pool:
        try:
            rest, begun = iter(values), deque[Future[R]]()
            while True:
                with _deaf():
                    for value in islice(rest, _AHEAD - len(begun)):
                        begun.append(pool.submit(function, value))
                if not begun:
                    return
                yield begun.popleft().result()
        except BaseException:
            for process in active_children():
                if process not in others:
                    process.kill()
            raise


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
    parts = [min(1, jobs * own / sum(heavy[at:])) for at, own in enumerate(heavy)]
    begun = partial(_begun, function, effort)
    pairs = list(zip(parts, items, strict=True))
    return list(in_order(begun, pairs, min(jobs, len(items))))


def _begun(function: Callable[[T, Effort], R], effort: Effort, pair: tuple[float, T]) -> R:
    """The function of an item that begins now, with this part of the time that is left."""
    part, item = pair
    share = max(0.0, effort.left) * part
    with _uncollected():
        return function(item, replace(effort, deadline=time.monotonic() + share))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Searches make many small objects, which are freed without the garbage collector: to look for
    circles among those that stay takes a tenth of the time, and finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
