"""The slab against looking at every step: who is where, and whose bytes are taken over."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.choice import Value
from planner.lifetimes import Slab, lay_out
from plans.schema import Buffer


@dataclass(frozen=True)
class Lives:
    """Stands in for a choice: any values, in a round of so many steps."""

    steps: int
    ahead: int
    lives: tuple[Value, ...]

    def values(self) -> Iterator[Value]:
        return iter(self.lives)


@st.composite
def choices(draw: st.DrawFn, ahead: int) -> Lives:
    """Values that wrap around the end of the round, in parts, all the time, loaded or not."""
    steps = draw(st.integers(1, 7))
    lives = []
    for number in range(draw(st.integers(0, 7))):
        first = draw(st.integers(-steps + 1, steps - 1))
        last = first + draw(st.integers(0, steps - 1))
        parts, load = draw(st.integers(1, 3)), draw(st.booleans())
        earliest = last + 1 - steps if load else 0
        size = parts * 256 * draw(st.integers(0, 4))
        lives.append(Value(f"v{number}", size, first, last, load, earliest, parts))
    return Lives(steps, ahead, tuple(lives))


def spans(slab: Slab) -> dict[str, tuple[int, int]]:
    """The bytes of every buffer."""
    return {b.name: (b.offset, b.offset + b.bytes) for b in slab.buffers}


def buffers_of(value: Value, slab: Slab) -> list[Buffer]:
    return [b for b in slab.buffers if b.name.split(".")[0] == f"0/{value.name}"]


def alive(value: Value, step: int, steps: int) -> bool:
    return any((at - step) % steps == 0 for at in range(value.first, value.last + 1))


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@given(choices(ahead=0) | choices(ahead=1), st.integers(0, 8000))
def test_values_alive_at_one_step_share_no_byte(of: Lives, room: int) -> None:
    """Also when loads begin earlier than they must."""
    slab = lay_out(of, room)  # type: ignore[arg-type]
    where = spans(slab)
    for step in range(of.steps):
        there = [v for v in of.lives if v.bytes and alive(v, step, of.steps)]
        names = [b.name for v in there for b in buffers_of(v, slab)]
        for one, other in combinations(names, 2):
            assert not overlap(where[one], where[other]), (step, one, other)


@given(choices(ahead=0))
def test_every_value_has_its_bytes_and_the_slab_ends_with_the_last(of: Lives) -> None:
    """Parts are equal buffers; the most bytes alive at once are those of the fullest step."""
    slab = lay_out(of, 0)  # type: ignore[arg-type]
    for value in of.lives:
        assert sum(b.bytes for b in buffers_of(value, slab)) == value.bytes
        assert len({b.bytes for b in buffers_of(value, slab)}) <= 1
        assert len(buffers_of(value, slab)) == (value.parts if value.bytes else 0)
    assert slab.bytes == max((end for _, end in spans(slab).values()), default=0)
    live = (sum(v.bytes for v in of.lives if alive(v, s, of.steps)) for s in range(of.steps))
    assert slab.live_bytes == max(live) <= slab.bytes


@given(choices(ahead=1), st.integers(0, 8000))
def test_loads_ahead_take_only_room_that_is_there(of: Lives, room: int) -> None:
    """The slab is within the room, or the least that does without."""
    least = lay_out(of, 0).bytes  # type: ignore[arg-type]
    assert lay_out(of, room).bytes <= max(least, room)  # type: ignore[arg-type]


@settings(max_examples=150)
@given(choices(ahead=0))
def test_who_had_the_bytes_last_is_known(of: Lives) -> None:
    """Going back step by step from where a value begins, the first one met in each of its bytes."""
    slab = lay_out(of, 0)  # type: ignore[arg-type]
    where = spans(slab)
    for value in of.lives:
        for mine in buffers_of(value, slab):
            for at in range(mine.offset, mine.offset + mine.bytes, 256):
                last = _owner_before(of, slab, value, (at, at + 256))
                if last:
                    assert last in slab.before.get(mine.name, []), (mine.name, at)
    assert all(
        overlap(where[mine], where[theirs])
        for mine, others in slab.before.items()
        for theirs in others
    )


def _owner_before(of: Lives, slab: Slab, value: Value, piece: tuple[int, int]) -> str | None:
    """The buffer that had these bytes when `value`, which has them next, was not yet alive."""
    for back in range(1, of.steps):
        for other in of.lives:
            if alive(other, value.first - back, of.steps):
                for theirs in buffers_of(other, slab):
                    if overlap(spans(slab)[theirs.name], piece):
                        return None if other is value else theirs.name
    return None
