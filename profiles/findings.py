"""The findings of a checker: so many violations of a kind in words, the others counted.

Rules say lines one by one and nobody keeps them all, so that a file that breaks a rule a million
times is refused as lightly as one that breaks it once.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

MOST = 100
"""So many violations of a kind are listed."""

_LONGEST = 2000  # characters of a line
_FEW = 6  # items of a list that are all named


class Findings:
    """Violations in the order in which rules say them, each line once."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._told: Counter[str] = Counter()  # per kind, those listed
        self._more: Counter[str] = Counter()  # per kind, those only counted

    def add(self, kind: str, lines: Iterable[str], where: str = "") -> bool:
        """Take what a rule of this kind says, with `where` at the end; whether it said anything."""
        said = False
        for line in lines:
            said = True
            if self._told[kind] == MOST:
                self._more[kind] += 1
                continue
            text = _one_line(line) + where
            if text not in self._lines:
                self._lines[text] = None
                self._told[kind] += 1
        return said

    @property
    def total(self) -> int:
        """The number of violations, listed or not."""
        return len(self._lines) + self._more.total()

    def lines(self) -> list[str]:
        """All that are listed, then how many more of each kind there are."""
        more = (f"{kind}: {count} more like these" for kind, count in self._more.items())
        return [*self._lines, *more]


def few(items: Sequence[object]) -> str:
    """A list in messages, however long it is."""
    if len(items) <= _FEW:
        return ", ".join(map(str, items)) or "none"
    return f"{', '.join(map(str, items[:3]))}, ... {items[-1]} ({len(items)} of them)"


def _one_line(text: str) -> str:
    """Names may hold anything, and lists be as long as the file."""
    cut = f"{text[:_LONGEST]} …" if len(text) > _LONGEST else text
    return "\\n".join(cut.splitlines())
