"""Texts that are stored with the tests: what is printed or drawn, word by word.

With `RENEW=1` in the environment tests write them anew: read what changed.
"""

import os
from pathlib import Path

WORDS = Path(__file__).parents[1] / "data" / "words"


def as_stored(name: str, found: str) -> None:
    """The text is the one that is stored under this name."""
    file = WORDS / f"{name}.txt"
    if os.environ.get("RENEW"):
        file.write_text(found + "\n")
    assert found + "\n" == file.read_text()
