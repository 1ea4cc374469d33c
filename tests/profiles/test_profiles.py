"""The profile format: strict reading, semantic checks, sizes and rates."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import synthetic

import profiles
from profiles import FormatError
from profiles.codec import json_schema, pretty
from profiles.schema import Profile
from profiles.units import parse_bytes, parse_rate, show_bytes, show_us

PROFILE = synthetic.profile(synthetic.task("a", layers=2), usable_bytes=1 << 24)


def edited(*path: Any, value: Any) -> bytes:
    """The sample profile as JSON with one value replaced."""
    data = json.loads(pretty(PROFILE))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(data).encode()


def tied(size: int) -> bytes:
    """The sample profile, its layers sharing so many gradient bytes."""
    data = json.loads(edited("tasks", 0, "ties", value=[[0, 1]]))
    data["tasks"][0]["tie_bytes"] = [size]
    return json.dumps(data).encode()


LINKS = json.loads(pretty(PROFILE))["machine"]["devices"][0]["links"]


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    """A profile survives the round trip through its file."""
    profiles.save(tmp_path / "p.json", PROFILE)
    assert profiles.load(tmp_path / "p.json") == PROFILE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (edited("tasks", 0, "batch", value=6), "microbatch 4 does not divide the batch of 6"),
        (edited("tasks", 0, "batches", 1, "microbatch", value=1), r"\[1, 1, 4\] are not ascending"),
        (
            edited("tasks", 0, "layers", 1, "costs", 0, "microbatch", value=3),
            r"measured at microbatches \[3, 2, 4\], the task at \[1, 2, 4\]",
        ),
        (
            edited("tasks", 0, "layers", 1, "costs", 0, "in_bytes", value=0),
            r"layers\[1\]: takes 0 bytes at microbatch 1",
        ),
        (edited("tasks", 0, "ties", value=[[0, 5]]), "not an ascending list of layers 0..1"),
        (edited("tasks", 0, "tie_bytes", value=[256]), "has tie_bytes of 1 groups, but 0 groups"),
        (tied(1 << 40), r"share 1099511627776 gradient bytes, but the first of them has"),
        (
            edited("tasks", 0, "layers", 0, "costs", 1, "out_bytes", value=512),
            "gives 512 bytes at microbatch 2 but layer 1 takes",
        ),
        (
            edited("tasks", 0, "layers", 0, "update_host", "p90_us", value=0),
            "p90 0 are not ascending",
        ),
        (
            edited("tasks", 0, "layers", 1, "costs", 0, "left_bytes", value=256),
            "input_peak_bytes at 1 some are there, expected all or none",
        ),
        (edited("machine", "devices", 0, "links", value=[]), "needs one h2d link, has 0"),
        (edited("machine", "devices", 0, "links", value=[*LINKS, LINKS[2]]), "has 2 d2d links"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused(data: bytes, message: str) -> None:
    """The schema holds but the numbers do not fit together."""
    with pytest.raises(FormatError, match=message):
        profiles.loads(data)


def test_the_exported_schema_is_current() -> None:
    """`make schemas` was run after the last change of the types."""
    exported = Path(profiles.__file__).with_name("profile.schema.json").read_text()
    assert exported == json_schema(Profile)


def test_sizes_and_rates_read_as_people_write_them() -> None:
    """Binary and decimal units, with and without B."""
    assert parse_bytes("24MiB") == 24 << 20
    assert parse_bytes("1.5 GB") == 1_500_000_000
    assert parse_bytes("4096") == 4096
    assert parse_rate("25GB/s") == 25_000_000_000
    assert show_bytes(24 << 20) == "24.0 MiB"
    assert show_us(15_100) == "15.1 ms"


@pytest.mark.parametrize("text", ["", "24", "-1GB/s", "fast", "0GB/s", "1XB/s"])
def test_a_bad_rate_says_how_to_write_one(text: str) -> None:
    """Nonsense is refused with an example."""
    with pytest.raises(ValueError, match=r"25GB/s|24GiB|positive"):
        parse_rate(text)
