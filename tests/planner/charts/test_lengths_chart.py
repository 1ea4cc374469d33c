"""Pictures of lengths, and the command that draws and describes them."""

from pathlib import Path

import numpy as np
import pytest
from support.cli import planner_cli, refused, succeeded
from support.synthetic import profile
from support.texts import LENGTHS, text_task

import profiles
from planner.charts import lengths_chart
from planner.views import shape_of
from profiles import lengths as files

TASK = text_task(batch=2)
SHAPE = shape_of(TASK, np.array(LENGTHS, np.uint32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    profiles.save(tmp_path / "x.json", profile(TASK, usable_bytes=1 << 30))
    files.save(tmp_path / "x.json", "text", LENGTHS)
    return tmp_path / "x.json"


def test_bars_and_curves_are_those_of_the_samples() -> None:
    """All samples are in some bar, and curves end at all of them, in ascending order."""
    figure = lengths_chart.figure([SHAPE, SHAPE])
    histogram, cumulative, longest, waste = figure.axes[:4]
    assert len(figure.axes) == 8
    for bars in histogram.containers:
        assert sum(bar.get_height() for bar in bars) == pytest.approx(1)
    for line in (*cumulative.lines, *longest.lines):
        heights = np.asarray(line.get_ydata(), float)
        assert (np.diff(heights) >= 0).all()
        assert heights[-1] == pytest.approx(1)
    assert [bar.get_width() for bar in waste.patches] == [one.compute for one in SHAPE.wastes]


def test_the_command_describes_and_draws(path: Path) -> None:
    """Words to stdout, the picture where it was asked for."""
    answer = succeeded(planner_cli("lengths", path, "--plot", path.with_name("l.png")))
    assert answer.out.startswith("text: 8 samples, 6,287 tokens")
    assert path.with_name("l.png").read_bytes().startswith(b"\x89PNG")


def test_bad_files_are_refused(path: Path) -> None:
    """Lengths that are missing or changed, profiles of tasks without, no names of pictures."""
    refused(planner_cli("lengths", path, "--plot", "x.txt"), 2, "the name of a picture ends in")
    refused(planner_cli("lengths", path, "--plot", path), 2, "this command reads it")
    beside = path.with_name("x.text.lengths")
    beside.write_bytes(beside.read_bytes()[:-4] + b"\1\0\0\0")
    refused(planner_cli("lengths", path), 2, "x.text.lengths: its sha256 is")
    beside.unlink()
    refused(planner_cli("lengths", path), 2, "the lengths of task text cannot be read: No such")
    refused(
        planner_cli("lengths", Path(profiles.__file__).with_name("sample.json")),
        2,
        "its tasks have samples of one length; give Task(lengths=...) and profile again",
    )
