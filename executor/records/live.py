"""The table of a run that stays on a terminal, under all that is printed meanwhile."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from profiles import console

Rows = Sequence[Sequence[str]]

_APART_S = 0.25, 2.0  # between two drawings: at least, at most,
_SPARED = 200  # and between them so many times what the last one took


class Live:
    """Tables on a terminal, drawn anew now and then."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Drawn

        out = Console(file=sys.stderr, highlight=False)
        # Without a thread of its own. What is printed meanwhile comes above it.
        self._drawn = Drawn(
            console=out,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._due_s = 0.0

    def show(self, made: Callable[[], tuple[str, Sequence[Rows]]]) -> None:
        """Draw a head and tables, each of which begins with its headings, if it is time."""
        begun_s = time.perf_counter()
        if begun_s < self._due_s:
            return
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head, tables = made()
        drawn = []
        for headings, *rows in tables:
            table = Table(*headings, box=None, pad_edge=False, header_style="bold")
            for row in rows:
                table.add_row(*map(Text, row))
            drawn.append(table)
        if not self._drawn.is_started:
            self._drawn.start()
            self._drawn.console.show_cursor(True)  # for a terminal whose run is killed
        self._drawn.update(Group(Text(head), *drawn), refresh=True)
        spent_s = time.perf_counter() - begun_s
        least, most = _APART_S
        self._due_s = begun_s + min(max(least, _SPARED * spent_s), most)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._drawn.stop()


def live() -> Live | None:
    """A table on stderr; None where that is no terminal, or rich is not there to draw it."""
    if not _terminal():
        return None
    try:
        return Live()
    except ImportError:
        console.note("a table of the run needs rich: pip install rich")
        return None


@contextmanager
def working(text: str) -> Iterator[None]:
    """Meanwhile say on stderr what is done, on a terminal with a sign that it goes on."""
    if not _terminal() or not find_spec("rich"):
        console.note(text)
        yield
        return
    from rich.console import Console

    with Console(file=sys.stderr, highlight=False).status(text):
        yield


def _terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") not in (None, "dumb")
