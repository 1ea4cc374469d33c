"""Files of lengths: what is written is read, and what is missing or changed is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import synthetic
from support.texts import LENGTHS, text_task

import profiles
from profiles import lengths
from profiles.codec import pretty, sha256
from profiles.errors import FormatError
from profiles.schema import Evaluation

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


def test_sums_are_exact() -> None:
    """Lengths are added in 64 bits."""
    assert lengths.describe([2**32 - 1] * 8).tokens == 8 * (2**32 - 1)


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
    """And only where it is evaluated."""
    task = structs.replace(TASK, **change)
    profile = synthetic.profile(task, usable_bytes=1 << 30)
    with pytest.raises(FormatError, match=said):
        profiles.loads(pretty(profile), "x.json")


def test_steps_begin_again_after_the_last_sample() -> None:
    """Step t has sample t * batch and those that follow."""
    assert [lengths.of_step(t, 3, 5).tolist() for t in range(3)] == [
        [0, 1, 2],
        [3, 4, 0],
        [1, 2, 3],
    ]


def test_a_file_of_lengths_is_whole_or_not_there(tmp_path: Path) -> None:
    """Nothing is left of one that could not be written."""
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
