"""Layouts as they are written, and those that there are."""

from itertools import product

import pytest

from planner.inputs import Layout, layouts, parse_layout, side_by_side


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
