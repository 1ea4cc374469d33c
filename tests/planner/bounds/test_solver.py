"""Programs with whole numbers, against their relaxation."""

from random import Random

import pytest

from planner.bounds import Constraint, Linear, Status


@pytest.mark.parametrize("groups", [20, 120])
def test_whole_solutions_are_near_parts(groups: int) -> None:
    """One of three ways for each of many things, within a common limit: no less than parts of them
    cost, and little more, also where most of them are left as they are in parts."""
    rng, columns = Random(groups), range(1, 1 + 3 * groups)
    sizes = [rng.randrange(10, 100) for _ in columns]
    costs = {
        column: rng.randrange(10, 100) / size for column, size in zip(columns, sizes, strict=False)
    }
    rows = [Constraint([(1, 1 + 3 * g + n) for n in range(3)], 1, 1) for g in range(groups)]
    limit = Constraint(list(zip(sizes, columns, strict=False)), 0, 40 * groups)
    linear = Linear(1 + 3 * groups, [*rows, limit], costs)
    parts, _ = linear.solve((), seconds=60, seed=0)
    found, values = linear.solve_whole(columns, seconds=60, seed=0, gap=1e-3, nodes=30)
    assert parts.objective
    assert found.objective
    assert parts.objective - 1e-6 <= found.objective <= parts.objective * 1.02
    assert all(min(value, 1 - value) < 1e-6 for value in values[1:])
    assert (
        sum(size * value for size, value in zip(sizes, values[1:], strict=False))
        <= 40 * groups + 1e-6
    )


def test_what_does_not_fit_is_infeasible() -> None:
    """In parts as in whole numbers."""
    row = Constraint([(2, 1)], 3, 5)
    found, _ = Linear(2, [row, Constraint([(1, 1)], 0, 1)], {1: 1.0}).solve_whole(
        [1], seconds=60, seed=0, gap=1e-3, nodes=30
    )
    assert found.status is Status.INFEASIBLE
