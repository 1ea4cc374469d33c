"""The same function of many values, in several processes.

Processes end with the command, however it ends: an interrupt is for the command alone, which then
ends them, and when the command is killed they end by themselves.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from typing import TypeVar

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
