"""Options and layouts as they are written; tasks that go on as they began."""

from dataclasses import fields
from itertools import product
from typing import Any

import pytest
from support import synthetic
from support.texts import text_task

from planner import Options
from planner.inputs import Layout, layouts, parse_layout, side_by_side
from planner.inputs.options import _FLAGS
from planner.inputs.remaining import Asked, after
from plans.additions import Addition
from plans.runlog import CheckpointRecord, Header, RunLog
from profiles.errors import FormatError


@pytest.mark.parametrize(
    ("text", "replicas", "shown"),
    [
        ("2x2", (2, 2), "2x2"),
        ("3,1", (3, 1), "3,1"),
        (" 1x4 ", (4,), "1x4"),
        ("4", (4,), "1x4"),
        ("2,2,2", (2, 2, 2), "3x2"),
        ("1+2", (1, 1), "2+1"),
    ],
)
def test_a_layout_is_read_and_shown(text: str, replicas: tuple[int, ...], shown: str) -> None:
    """Depth x replicas, the replicas of each stage, or the stages of pipelines side by side."""
    layout = parse_layout(text)
    assert (layout.pipelines[0], str(layout)) == (replicas, shown)
    assert parse_layout(shown) == layout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2x",
        "x2",
        "0x2",
        "2x0",
        "3,",
        "-1",
        "2x2x2",
        "1.5",
        "²",
        "9" * 9,
        "99999x2",
        "2+",
        "2+0",
    ],
)
def test_what_is_no_layout_is_refused_by_name(text: str) -> None:
    """So is one of more devices than any task has."""
    with pytest.raises(ValueError, match=r"is no layout|are the most"):
        parse_layout(text)


def test_devices_are_numbered_stage_by_stage() -> None:
    """Every device belongs to one stage; the deepest pipeline has the first ones."""
    assert Layout(((3, 1, 2),)).stages == (((0, 1, 2), (3,), (4, 5)),)
    assert parse_layout("1+2").stages == (((0,), (1,)), ((2,),))


def test_devices_are_divided_in_every_way() -> None:
    """All partitions of 4 into pipelines, the deepest first."""
    assert [str(one) for one in side_by_side(4)] == ["4x1", "3+1", "2+2", "2+1+1", "1+1+1+1"]


def test_all_even_layouts_come_once_the_deepest_first() -> None:
    """On twelve devices there is one for each divisor."""
    even = [str(one) for one in layouts(12) if one.even]
    assert even == ["12x1", "6x2", "4x3", "3x4", "2x6", "1x12"]


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
def test_few_devices_have_every_uneven_layout_of_up_to_four_stages(devices: int) -> None:
    """Each once."""
    every = (
        one
        for depth in range(2, 5)
        for one in product(range(1, devices + 1), repeat=depth)
        if sum(one) == devices and len(set(one)) > 1
    )
    found = [one.replicas for one in layouts(devices) if not one.even]
    assert sorted(found) == sorted(every)


def test_many_devices_have_no_more_uneven_layouts() -> None:
    """Each is for all devices."""
    for devices in (16, 30, 1000):
        found = [one for one in layouts(devices) if not one.even]
        assert {one.devices for one in found} == {devices}
        assert len(set(found)) == len(found) <= sum(not one.even for one in layouts(8)) + 4


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


PROFILE = synthetic.profile(synthetic.task("a", layers=1, steps=20), usable_bytes=24 << 20)
TEXTS = synthetic.profile(text_task("a"), usable_bytes=24 << 20)


SUMS = (Addition(0, 1, "(0 + 1)"),)  # of a run on several devices


def log_of(done: int, reordered: int = 1) -> RunLog:
    """A run that was kept after so many steps."""
    header = Header(
        plan_sha256="0" * 64,
        started="2025",
        devices=("cpu0",),
        microbatch={"a": 1},
        reordered={"a": reordered} if reordered > 1 else {},
        additions={"a": SUMS},
    )
    return RunLog(header, (), (), None, (CheckpointRecord("a", done, 0),))


@pytest.mark.parametrize("window", [1, 4])
def test_a_task_goes_on_in_the_order_that_its_samples_had(window: int) -> None:
    """Wherever it stopped."""
    rest = after(TEXTS, [log_of(3, window)], "run.jsonl", (), window)
    assert rest.done == {"a": 3}


@pytest.mark.parametrize(("was", "window"), [(4, 1), (1, 4), (4, 8)])
def test_another_order_of_what_is_left_is_refused(was: int, window: int) -> None:
    """Some samples would be trained again, and others never."""
    text = f"a has trained 3 steps .* of {was} step.* give --reorder-window {was}"
    with pytest.raises(FormatError, match=text):
        after(TEXTS, [log_of(3, was)], "run.jsonl", (), window)


@pytest.mark.parametrize(
    ("asked", "keeps"),
    [((), True), ([("", 1)], True), ([("a", 1)], True), ([("", 0)], False), ([("", 2)], False)],
)
def test_the_size_that_a_task_had_is_as_good_as_none(asked: Asked, keeps: bool) -> None:
    """Who asks for it gets the same bits, or no plan; another size may add in any order."""
    rest = after(PROFILE, [log_of(8)], "run.jsonl", asked)
    assert (rest.microbatch, rest.additions) == ({"a": 1}, {"a": SUMS} if keeps else {})
