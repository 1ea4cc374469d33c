"""Trees of replicas: what is added to what, and when, against figures by hand."""

import pytest
from support import piped

from planner.lowering.trees import Join, joins, needed, spread, sums

LINKS = piped.LINKS
SIZE = 1 << 20
SEND, ADD = LINKS.send_us(SIZE), LINKS.add_us(SIZE)


def added(count: int, home: int) -> str:
    """The sum of so many devices at home, with the lower part of each sum in front."""
    held = {device: (device, str(device)) for device in range(count)}
    for to, other in joins(range(count), home):
        (first, low), (_, high) = sorted((held[to], held.pop(other)))
        held[to] = first, f"({low}+{high})"
    ((device, (_, text)),) = held.items()
    assert device == home
    return text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (4, "((0+1)+(2+3))"),
        (5, "(((0+1)+(2+3))+4)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (7, "(((0+1)+(2+3))+((4+5)+6))"),
        (11, "((((0+1)+(2+3))+((4+5)+(6+7)))+((8+9)+10))"),
    ],
)
def test_the_sum_is_the_same_wherever_its_home_is(count: int, text: str) -> None:
    """Halves of halves, by the order of the devices alone."""
    assert {added(count, home) for home in range(count)} == {text}


def test_homes_have_inner_devices_of_their_own() -> None:
    """Those that add for one home and send on only send for its neighbour."""
    inner = [{join.to for join in joins(range(8), home)} for home in range(8)]
    assert inner[0] == {0, 2, 4, 6}
    assert inner[1] == {1, 3, 5, 7}
    levels = [[join.other for join in joins(range(8), home)][4:6] for home in range(4)]
    assert sorted(device for level in levels for device in level) == list(range(8))


def test_neighbours_send_at_the_same_time() -> None:
    """Two at once, then one; each waits for the device that is done last."""
    tree, ends = joins(range(4), 0), dict.fromkeys(range(4), 0)
    assert tree == (Join(0, 1), Join(2, 3), Join(0, 2))
    assert sums([tree], [ends], [SIZE], LINKS) == [[SEND, SEND, SEND + ADD + SEND]]
    late = ends | {3: 1000}
    own = [SEND, 1000 + SEND, 1000 + SEND + ADD + SEND]
    assert sums([tree], [late], [SIZE], LINKS) == [own]


def test_a_device_sends_what_is_ready_first() -> None:
    """Of two trees that one device sends for, and what waits for that in the second."""
    trees, ends = [joins(range(2), 0), joins(range(2), 0)], [{0: 0, 1: 10}, {0: 5000, 1: 0}]
    assert sums(trees, ends, [SIZE, SIZE], LINKS) == [[2 * SEND], [5000]]


def test_what_is_sent_down_takes_turns_at_each_device() -> None:
    """The home sends to the far half first, whose device goes on meanwhile."""
    found = spread(joins(range(4), 0), 0, SIZE, LINKS)
    assert found == {0: 0, 2: SEND, 1: 2 * SEND, 3: 2 * SEND}


def test_parts_are_needed_the_sooner_the_further_they_have_to_go() -> None:
    """As late as that, all are added up in time, and any later they are not."""
    tree = joins(range(5), 3)
    due = needed(tree, 3, 10_000, SIZE, LINKS)
    assert sums([tree], [due], [SIZE], LINKS)[0][-1] + ADD == 10_000
    for device in range(5):
        (found,) = sums([tree], [due | {device: due[device] + 1}], [SIZE], LINKS)
        assert found[-1] + ADD == 10_001
