"""Lists for what is compiled, and where nothing can be kept beside the file."""

from typing import Any

import numba
import numpy as np
import pytest

from planner.rounds.compiled import Numbers, compiled, flat, predecessors


def test_lists_follow_each_other_flat() -> None:
    begins, numbers = flat([[3, -1], [], [7]])
    assert begins.tolist() == [0, 2, 2, 3]
    assert numbers.tolist() == [3, -1, 7]


def test_an_op_follows_the_one_before_it_and_the_first_the_last_of_the_round_before() -> None:
    assert predecessors([[2, 0], [3]], 5, -11).tolist() == [2, -11, -5, -2, -11]


def test_what_cannot_be_kept_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba raises where neither the folder of a file nor the user's own can be written."""
    njit = numba.njit

    def unwritable(*given: Any, cache: bool = False) -> Any:
        if cache:
            raise RuntimeError("no locator available")
        return njit(*given)

    monkeypatch.setattr(numba, "njit", unwritable)

    def total(numbers: Numbers) -> int:
        found = 0
        for one in numbers:
            found += one
        return found

    assert compiled(total)(np.array([1, 2, 4])) == 7
