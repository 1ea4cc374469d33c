"""A book's plans are those of its sizes alone, however many processes make them."""

from functools import partial
from pathlib import Path

import pytest
from support.searches import ALONE
from support.synthetic import profile, task

import profiles
from planner.booking import make_book
from planner.builder import draft
from planner.errors import Infeasible
from planner.inputs import Options, read_problem
from planner.inputs.layout import parse_layout
from profiles.codec import pretty

MAKE = partial(draft, seconds=1000, limits=ALONE)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "x.json"
    profiles.save(path, profile(task("a", layers=3), task("b", layers=2), usable_bytes=1 << 30))
    return str(path)


def test_the_plans_of_a_book_are_those_of_its_sizes_alone(file: str) -> None:
    """With the microbatches of the largest, byte for byte."""
    book = make_book(file, [2, 3, 1], Options(segment_steps=4), MAKE, jobs=2)
    same = {task.name: task.microbatch for task in book.plans[-1].tasks}
    assert [len(plan.devices) for plan in book.plans] == [1, 2, 3]
    for count, plan in enumerate(book.plans, 1):
        asked = Options(devices=count, segment_steps=4, microbatch=same if count < 3 else ())
        assert pretty(plan) == pretty(MAKE(read_problem(file, asked)))


def test_what_one_size_lacks_is_said_with_the_size(file: str) -> None:
    """Also of those that have to take the microbatches of the largest."""
    asked = Options(layout=parse_layout("2x1"))
    with pytest.raises(Infeasible, match="infeasible: 1 device"):
        make_book(file, [1, 2], asked, MAKE)
