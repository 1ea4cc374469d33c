"""Runs of plan books: as many devices train as there are, others when these change.

    now.txt       0 1 2 3      ─▶      0 1 2      ─▶      0 1 2 3        (a line each)
    plan          for 4 devices        for 3               for 4
                  ···▶ rounds end, states are kept ▶ go on from them

torchrun starts processes anew when some are lost or come; a process alone follows a file.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import plans
from executor.devices import gpu_count
from executor.errors import InterruptedRun, UsageError
from plans.order import fastest, pays_from_us, plan_for
from plans.schema import Plan
from profiles import console
from profiles.codec import read_bytes
from profiles.schema import GPU
from profiles.units import show_us

Notice = Callable[[int], str]
"""See `Settings.notice`."""


def chosen(book: plans.Book, devices: int | None, where: str) -> Plan:
    """The plan for so many devices in one process, by default all that there are; under torchrun
    the one for its processes. FormatError where there is none."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        size, nodes = (int(os.environ[name]) for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE"))
        return plan_for(book, size, nodes, where)
    if devices is None:
        most = max(len(plan.devices) for plan in book.plans)
        devices = gpu_count() if book.plans[0].devices[0].kind == GPU else most
    return plan_for(book, devices, 1, where)


def book_in(path: Path) -> plans.Book:
    """The book in this file; UsageError for one plan."""
    if not plans.is_book(data := read_bytes(path)):
        raise UsageError(f"{path}: is one plan; --devices-file chooses one from a plan book")
    return plans.book_from(data, str(path))


def following(path: Path, book: plans.Book, train: Callable[[int, Notice], int]) -> int:
    """Train on as many devices as the file has lines, and again on others when another plan of the
    book is the one for them and worth the change; the exit code. `train` is given the number, and
    asks whether it has changed."""
    start_us = 0  # what the latest start took, so that a change costs about as much
    changing = False

    def changed(left_us: int) -> str:
        """The change in words, empty while there is none; a file that is being written counts as
        none."""
        nonlocal start_us, changing
        start_us = start_us or max(1, int((time.perf_counter() - begun_s) * 1e6))
        try:
            there = len(path.read_text().split())
        except OSError:
            return ""
        best = fastest(book, there) if there else plan
        if plan is None or best is None or best is plan or best in refused:
            return ""
        slow_us, fast_us = plan.prediction.makespan_us, best.prediction.makespan_us
        then_us = left_us * fast_us // slow_us
        told = f"{there} device(s) instead of {count}: {show_us(then_us)} to go"
        joins = there >= len(plan.devices)
        if joins and left_us <= pays_from_us(slow_us, fast_us, start_us):
            refused.append(best)
            console.note(
                f"{told} instead of {show_us(left_us)}, and a start takes {show_us(start_us)}: it "
                f"stays on {len(plan.devices)}"
            )
            return ""
        changing = True
        return f"{told}, {show_us(left_us)} before"

    while True:
        count, begun_s = _lines(path), time.perf_counter()
        plan, refused, changing = fastest(book, count), list[Plan](), False
        try:
            return train(count, changed)
        except InterruptedRun as error:
            if not (changing and error.whole):  # a signal ended it
                raise
        start_us = 0


def _lines(path: Path) -> int:
    """The devices in the file; UsageError where it has none."""
    count = len(read_bytes(path).split())
    if not count:
        raise UsageError(f"{path}: names no device; write one name into each line")
    return count
