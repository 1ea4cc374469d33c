"""The part that both command lines share: arguments, and how a command ends.

Results go to stdout and are each command's last act; errors are one line on stderr.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, TypeVar

from profiles.errors import GantryError
from profiles.units import parse_bytes, parse_rate, parse_us

T = TypeVar("T")

GROUPS = (
    "common",
    "of hf: workloads",
    "several devices",
    "emulated devices",
    "lengths",
    "to compare",
    "expert",
)
"""Headings of a command's options in its help, in order."""


AGAIN = "; the same command goes on from where it ended"
"""Of commands that leave what they have done: their `again`, see `run`."""


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command as Ctrl-C does. exit_code: what a shell says of it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; the usage is what --help is for. So are its commands.

    Options have a group of GROUPS; those without one stand with --help, which is common."""

    def add_argument(self, *names: str, group: str = "", **words: Any) -> argparse.Action:
        """Add an argument, to a group if one is named."""
        if not group:
            return super().add_argument(*names, **words)
        self._optionals.title = GROUPS[0]
        known = {one.title: one for one in self._action_groups}
        return (known.get(group) or self.add_argument_group(group)).add_argument(*names, **words)

    def format_help(self) -> str:
        """The help, with the groups in their order, behind the arguments."""
        places = {title: place for place, title in enumerate(GROUPS)}
        self._action_groups.sort(key=lambda group: places.get(group.title or "", -1))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Parse, run the command (its `command` default), and turn errors into exit codes. Of one
    that was interrupted its `again` default says how it goes on.

    SIGTERM and SIGHUP end it as Ctrl-C does, unless they are ignored (nohup)."""
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal may not know µ or …
    try:
        with heard((signal.SIGTERM, signal.SIGHUP), _interrupt):
            code: int = options.command(options)
        print(end="", flush=True)
        return code
    except GantryError as error:
        return fail(str(error), error.exit_code)
    except KeyboardInterrupt as error:
        known = error if isinstance(error, Interrupted) else Interrupted(signal.SIGINT)
        return fail(f"interrupted{getattr(options, 'again', '')}", known.exit_code)
    except SystemExit as stop:
        return fail(f"the workload called sys.exit({stop.code!r}); it must return instead", 2)
    except OSError as error:  # trouble with files is a GantryError
        return _unheard(error)


@contextmanager
def heard(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Meanwhile these signals call the handler: those that are not ignored, in the main thread,
    which alone may hear of them."""
    main = threading.current_thread() is threading.main_thread()
    before = {n: signal.getsignal(n) for n in (numbers if main else ())}
    before = {n: known for n, known in before.items() if known not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def fail(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def warn(message: str) -> None:
    """Say on stderr what does not end the command."""
    print(f"warning: {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Say on stderr what may be good to know."""
    print(message, file=sys.stderr, flush=True)


def _unheard(error: OSError) -> int:
    """stdout takes no more. With `| head` that is no failure: nothing was left to do."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's own last flush
    if isinstance(error, BrokenPipeError):
        return 0
    return fail(f"output: cannot be written: {error.strerror}", 1)


def columns(rows: Iterable[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Rows as aligned lines; with `numbers`, all columns but the first to the right."""
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if numbers and place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """The type of an argument that is parsed so, with the parser's own words for a bad one."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


size = typed(parse_bytes)  # such as 24GiB
rate = typed(parse_rate)  # such as 25GB/s
duration = typed(parse_us)  # such as 90s, 1:23:00 or 83m, in µs


def seconds(text: str) -> float:
    """A positive, finite number."""
    return positive(text, "number of seconds")


def positive(text: str, what: str) -> float:
    """A positive, finite number; an error for what is no positive `what`."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive {what}")
    return value


def whole(least: int, most: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return value

    return parse


def listed(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """A parser of such values with commas between them."""
    return lambda text: tuple(parse(part) for part in text.split(","))
