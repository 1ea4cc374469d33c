"""Profiles: their rules, curves, lengths and units."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.texts import LENGTHS, SIZES, text_task, us_of

import profiles
from profiles import lengths
from profiles.codec import json_schema, pretty, sha256
from profiles.curves import OPS, curves_of, fit, us
from profiles.errors import FormatError
from profiles.schema import Evaluation, LayerCost, Profile, Time
from profiles.units import (
    LARGEST,
    enough_bytes,
    parse_bytes,
    parse_rate,
    parse_us,
    show_bytes,
    show_clock,
    show_us,
)

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
    assert parse_bytes("24MiB") == 24 << 20
    assert parse_bytes("1.5 GB") == 1_500_000_000
    assert parse_bytes("4096") == 4096
    assert parse_rate("25GB/s") == 25_000_000_000
    assert show_bytes(24 << 20) == "24.0 MiB"
    assert enough_bytes((24 << 20) + 1) == "25165825 (24.1MiB)"
    assert enough_bytes(24 << 20) == "25165824 (24.0MiB)"
    assert show_us(15_100) == "15.1 ms"


@pytest.mark.parametrize("text", ["", "24", "-1GB/s", "fast", "0GB/s", "1XB/s"])
def test_a_bad_rate_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"25GB/s|24GiB|positive"):
        parse_rate(text)


FORMULAS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**8), st.integers(0, 10**7))


@given(FORMULAS, st.lists(st.integers(1, 1 << 17), min_size=4, max_size=9, unique=True))
def test_times_of_a_formula_are_fitted_to_the_last_us(
    formula: tuple[int, int, int], lengths: list[int]
) -> None:
    medians = {n: round(us_of(formula, n, n * n)) for n in lengths}
    assume(min(medians.values()) >= 100)
    made = fit("forward", medians)
    assert all(abs(us(made, n, n * n) - t) <= 1 + t / 90 for n, t in medians.items())
    off = max(abs(us(made, n, n * n) - t) / t for n, t in medians.items())
    assert made.off_ppm == round(off * 10**6)


@given(st.lists(st.integers(0, 10**6), min_size=4, max_size=4))
def test_no_times_give_coefficients_below_zero(times: list[int]) -> None:
    """Falling and concave times as well: no other point near the fit is better, and none is
    negative."""
    medians = dict(zip(SIZES, times, strict=True))
    made = fit("backward", medians)
    found = np.array([made.square_fs / 1e9, made.linear_ps / 1e6, made.fixed_ns / 1e3])
    assert (found >= 0).all()

    def error(x: np.ndarray) -> float:
        at = {n: x @ [n * n, n, 1] for n in SIZES}
        return sum(((at[n] - max(1, t)) / max(1, t)) ** 2 for n, t in medians.items())

    least = error(found)
    for place in range(3):
        for factor in (0.5, 0.9, 1.1, 2):
            other = found.copy()
            other[place] *= factor
            assert error(other) >= least * (1 - 1e-4) - 1e-6
        other = found.copy()
        other[place] += (1e-6, 1e-4, 1)[place]
        assert error(other) >= least * (1 - 1e-4) - 1e-6


def test_only_what_was_measured_everywhere_has_a_curve() -> None:
    time = Time(100, 90, 110, 3)
    costs = tuple(
        LayerCost(n, 0, 0, 0, 0, 0, 0, time, time, time, pack_backward=time if n > 256 else None)
        for n in SIZES
    )
    assert [curve.op for curve in curves_of(costs)] == list(OPS[:3])


TASK = text_task()


def test_lengths_are_uint32_in_a_file_beside_the_profile(tmp_path: Path) -> None:
    """Its bytes are those that the profile has the sha256 of, and they come back."""
    lengths.save(tmp_path / "x.json", "text", LENGTHS)
    data = (tmp_path / "x.text.lengths").read_bytes()
    assert data == b"".join(n.to_bytes(4, "little") for n in LENGTHS)
    assert TASK.lengths is not None
    assert TASK.lengths.sha256 == sha256(data)
    assert lengths.load(tmp_path / "x.json", [TASK])["text"].tolist() == LENGTHS


@pytest.mark.parametrize("kind", [list, np.array, lambda x: np.array(x, ">i8"), tuple])
def test_lengths_of_any_kind_are_told_alike(kind: type) -> None:
    """Sums, the longest and the hash do not go by how they are kept."""
    said = lengths.describe(kind(LENGTHS))
    assert (said.samples, said.tokens, said.longest) == (8, sum(LENGTHS), 4096)
    assert said == TASK.lengths


def test_missing_and_changed_files_are_refused(tmp_path: Path) -> None:
    """One line that names the file and the task, and says what to do."""
    path = tmp_path / "x.json"
    with pytest.raises(FormatError, match=r"x\.text\.lengths: the lengths of task text cannot be"):
        lengths.load(path, [TASK])
    lengths.save(path, "text", LENGTHS[:-1])
    with pytest.raises(FormatError, match="has 28 bytes, the 8 lengths of task text have 32"):
        lengths.load(path, [TASK])
    lengths.save(path, "text", [*LENGTHS[:-1], 78])
    with pytest.raises(FormatError, match=r"its sha256 is .*; profile again"):
        lengths.load(path, [TASK])


def test_samples_of_evaluations_have_a_file_of_their_own(tmp_path: Path) -> None:
    """By the task's name with `.evaluation`; a task without lengths has none."""
    said = lengths.describe([3, 4])
    task = structs.replace(TASK, evaluation=Evaluation(2, 1), evaluation_lengths=said)
    lengths.save(tmp_path / "x.json", "text", LENGTHS)
    lengths.save(tmp_path / "x.json", lengths.held_out("text"), [3, 4])
    found = lengths.load(tmp_path / "x.json", [task, structs.replace(TASK, lengths=None)])
    assert {name: own.tolist() for name, own in found.items()} == {
        "text": LENGTHS,
        "text.evaluation": [3, 4],
    }
    assert (tmp_path / "x.text.evaluation.lengths").stat().st_size == 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"evaluation": Evaluation(2, 1)}, "text: there are no lengths of samples to evaluate it"),
        ({"evaluation_lengths": TASK.lengths}, "text: there are lengths of samples to evaluate it"),
        (
            {
                "evaluation": Evaluation(2, 1),
                "evaluation_lengths": structs.replace(lengths.describe([3, 4]), tokens=9),
            },
            "text: 2 lengths of at most 4 cannot have 9 tokens",
        ),
    ],
)
def test_a_task_with_lengths_is_evaluated_on_samples_with_lengths(
    change: dict[str, object], said: str
) -> None:
    task = structs.replace(TASK, **change)
    profile = synthetic.profile(task, usable_bytes=1 << 30)
    with pytest.raises(FormatError, match=said):
        profiles.loads(pretty(profile), "x.json")


def test_steps_begin_again_after_the_last_sample() -> None:
    assert [lengths.of_step(t, 3, 5).tolist() for t in range(3)] == [
        [0, 1, 2],
        [3, 4, 0],
        [1, 2, 3],
    ]


def test_a_file_of_lengths_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.text.lengths").mkdir()
    with pytest.raises(FormatError, match="it is a folder"):
        lengths.save(tmp_path / "x.json", "text", LENGTHS)
    assert [path.name for path in tmp_path.iterdir()] == ["x.text.lengths"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=99), st.integers(1, 24), st.integers(1, 5))
def test_samples_are_reordered_within_their_windows(
    own: list[int], batch: int, window: int
) -> None:
    """Each once: the first step has the longest, every other one of 16 or more a quarter of its
    samples from the shortest that are left; all else from the longest; of equal ones the first."""
    order, size = lengths.reorder(own, batch, window).tolist(), batch * window
    for at in range(0, len(own), size):
        left = sorted(range(at, min(at + size, len(own))), key=lambda n: (-own[n], n))
        for step in range(at, at + len(left), batch):
            found = order[step : min(step + batch, at + size)]
            short = len(found) // 4 if step > at and len(found) >= 16 else 0
            middle = slice(len(found) - short, len(left) - short)
            assert found == left[: middle.start] + left[middle.stop :]
            left = left[middle]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("90s", 90_000_000),
        ("1:23:00", 4_980_000_000),
        ("01:23:00", 4_980_000_000),
        ("83m", 4_980_000_000),
        ("83:00", 4_980_000_000),
        ("1.5h", 5_400_000_000),
        ("250ms", 250_000),
        ("12us", 12),
        ("4980", 4_980_000_000),
        ("0.000001", 1),
        ("0", 0),
    ],
)
def test_times_are_read_in_all_their_forms(text: str, us: int) -> None:
    assert parse_us(text) == us


@pytest.mark.parametrize("text", ["", "s", "-1s", "1:2", "1:2:3:04", "3d", "1e3", "nan", "1,5s"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 90s, 1:23:00, 83m"):
        parse_us(text)


def test_times_beyond_all_plans_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 35 years"):
        parse_us("999999h")


@given(st.integers(0, LARGEST))
def test_a_clock_reads_back_exactly(us: int) -> None:
    assert parse_us(show_clock(us)) == us
