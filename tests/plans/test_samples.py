"""Tables of microbatches: what is written is read, and a file is whole or not there."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plans.samples import copy, open_order, open_table, table_path, write
from profiles.codec import file_sha256
from profiles.errors import FormatError


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Little-endian, row after row, whether rows come alone or in blocks."""
    path = tmp_path / "x.samples"
    digest = write(path, [np.array([0, 1, 258]), np.array([[3, 2, 1], [65535, 0, 9]])])
    assert path.read_bytes()[:6] == bytes([0, 0, 1, 0, 2, 1])
    assert open_table(path, 3).tolist() == [[0, 1, 258], [3, 2, 1], [65535, 0, 9]]
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest() == file_sha256(path)


def test_a_table_that_ends_half_way_leaves_the_old_one(tmp_path: Path) -> None:
    """Nothing else is in the folder afterwards either."""
    path = tmp_path / "x.samples"
    write(path, [np.array([7])])

    def broken() -> Iterator[np.ndarray]:
        yield np.array([8])
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(path, broken())
    assert open_table(path, 1).tolist() == [[7]]
    assert list(tmp_path.iterdir()) == [path]


def test_a_table_is_copied_whole(tmp_path: Path) -> None:
    """Of any size, over another one."""
    rows = np.arange(3 << 19).reshape(-1, 8) % 65536
    digest, other = write(tmp_path / "x", [rows]), tmp_path / "y"
    write(other, [np.array([7])])
    copy(tmp_path / "x", other)
    assert file_sha256(other) == digest


@pytest.mark.parametrize("entry", [-1, 1 << 16])
def test_what_does_not_fit_is_refused(tmp_path: Path, entry: int) -> None:
    """A number is never cut down to 16 bits."""
    with pytest.raises(ValueError, match="not below 65536"):
        write(tmp_path / "x.samples", [np.array([entry])])


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be read"), (b"", "0 bytes"), (b"abc", "3 bytes"), (b"abcd", "rows of 3")],
)
def test_a_file_that_is_no_such_table_is_an_error(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    """It names the file and what is wrong with it."""
    path = tmp_path / "x.samples"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=words):
        open_table(path, 3)


def test_a_table_lies_beside_its_plan() -> None:
    """Its name has the plan's and the task's."""
    assert table_path("plans/long.json", "gpt-a") == Path("plans/long.gpt-a.samples")


def test_a_table_begins_with_the_order_of_its_samples(tmp_path: Path) -> None:
    """If they have one; and is no table of samples without."""
    path, order = tmp_path / "x.samples", np.array([70_000, 0, 1], np.uint32)
    write(path, [np.array([[3, 2], [1, 0]])], order)
    assert open_order(path, 3).tolist() == [70_000, 0, 1]
    assert open_table(path, 2, 3).tolist() == [[3, 2], [1, 0]]
    assert open_order(path, 0) is None
    for batch, ordered in ((3, 3), (2, 5), (2, 9)):
        with pytest.raises(FormatError, match=f"rows of {batch}"):
            open_table(path, batch, ordered)
