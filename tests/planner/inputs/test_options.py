"""What can be asked of a plan, by flags and in Python."""

from dataclasses import fields
from typing import Any

import pytest

from planner import Options
from planner.inputs import parse_layout
from planner.inputs.options import _FLAGS
from profiles.errors import FormatError


def test_every_option_is_a_flag() -> None:
    """So it is read, explained and told of."""
    assert set(_FLAGS) == {one.name for one in fields(Options)}


def test_options_are_read_from_text() -> None:
    """As on the command line, errors included."""
    said: dict[str, Any] = {"layout": "2x1", "h2d": "2GB/s", "microbatch": "a=4", "devices": "2"}
    read = Options(layout=parse_layout("2x1"), h2d=2 * 10**9, microbatch=(("a", 4),), devices=(2,))
    assert Options(**said) == read
    assert read.told() == {"layout": "2x1", "h2d": "2000000000 bytes/s"}
    with pytest.raises(FormatError, match="--reorder-window: '0' is not a whole number"):
        Options(**{"reorder_window": "0"})  # type: ignore[arg-type]
