"""Slot assignment against its own promises."""

from hypothesis import given
from hypothesis import strategies as st

from planner.slots import assign


@given(st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_a_use_finds_its_shard_in_its_slot(shards: int, slots: int, last_streamed: bool) -> None:
    """Replaying the loads, every use finds the shard it names, in a version not yet updated."""
    forward = list(range(shards - last_streamed))
    backward = list(range(shards))[::-1]
    held: dict[int, int] = {}
    for use in assign(forward, backward, min(slots, shards)):
        if use.loads:
            held[use.slot] = use.shard
        assert held[use.slot] == use.shard
        if use.sweep == "B":
            del held[use.slot]  # stale after its update


def test_shards_at_the_turn_are_not_loaded_twice() -> None:
    """With three slots the two last forwards are still there when backward comes down."""
    uses = assign([0, 1, 2, 3], [4, 3, 2, 1, 0], 3)
    assert [use.shard for use in uses if use.loads] == [0, 1, 2, 3, 4, 1, 0]
