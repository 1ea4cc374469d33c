"""Which settings of a sweep go on, and which sweeps there cannot be."""

import math
from typing import Any

import pytest
from support.chains import chain

from executor import Evaluation, Sweep, Task, grid, hyperband
from executor.errors import WorkloadError

RUNGS = (2, 4)


def sweep(count: int = 4, **more: Any) -> Sweep:
    return Sweep([{"lr": n} for n in range(count)], RUNGS, **more)


def values(*given: float | None) -> dict[str, float | None]:
    return {f"t{n}": value for n, value in enumerate(given)}


def test_the_best_part_goes_on_rounded_up() -> None:
    assert sweep(keep=1 / 3).kept(0, values(3.0, 1.0, 2.0, 4.0)) == ["t1", "t2"]
    assert sweep(keep=0.1, count=30).kept(0, values(*map(float, range(30)))) == ["t0", "t1", "t2"]


def test_the_largest_are_best_where_it_says_so() -> None:
    assert sweep(keep=1 / 2, mode="max").kept(0, values(3.0, 1.0, 2.0, 4.0)) == ["t3", "t0"]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_what_has_failed_or_is_no_number_never_goes_on(mode: str) -> None:
    """Even where nothing else is left."""
    assert sweep(keep=0.9, mode=mode).kept(0, values(None, math.nan, 5.0)) == ["t2"]
    assert sweep(mode=mode).kept(0, values(None, math.nan)) == []


def test_brackets_are_compared_by_themselves_from_their_rung_on() -> None:
    """At the first rung all of the second bracket go on, at the second each bracket has its best;
    what came later is of the first."""
    own = sweep(6, keep=1 / 2, brackets=(2, 3))
    given = values(1.0, 2.0, 5.0, 4.0, 3.0, 0.0)
    assert own.kept(0, given) == ["t5", "t0", "t4", "t3", "t2"]
    assert own.kept(1, given) == ["t5", "t0", "t4", "t3"]


def test_hyperband_has_the_brackets_of_its_paper() -> None:
    """81 steps at most, a third going on."""
    ladder = hyperband(1, 81)
    assert ladder["rungs"] == (1, 3, 9, 27, 81)
    assert ladder["brackets"] == (81, 34, 15, 8, 5)


def test_a_grid_is_whole_or_drawn() -> None:
    choices = {"lr": (1, 2, 3), "width": (4, 5)}
    whole, drawn = grid(choices), grid(choices, 4, seed=1)
    assert len(whole) == 6
    assert whole[1] == {"lr": 1, "width": 5}
    assert [own for own in whole if own in drawn] != drawn
    assert len({str(own) for own in drawn}) == 4
    assert drawn == grid(choices, 4, seed=1)


def trial(name: str, *, steps: int = 4, every: int = 2, called: str = "", **_: Any) -> Task:
    judged = Evaluation(every=every, data=lambda n: n, batches=1)
    return chain(called or name, 2, 2, steps, evaluate=judged)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"rungs": (4, 2)}, "rungs of a sweep: (4, 2); must be steps, ascending"),
        ({"rungs": ()}, "rungs of a sweep: (); must be"),
        ({"configs": []}, "configs of a sweep: []; must be some settings"),
        ({"keep": 1.0}, "keep of a sweep: 1.0; must be between 0 and 1"),
        ({"mode": "best"}, "mode of a sweep: 'best'; must be min or max"),
        ({"brackets": (1, 1, 1)}, "must be no more than there are rungs"),
        ({"task": None}, "a sweep of settings needs a function"),
        ({"configs": [{"called": "other"}]}, "the task of t0 has another name"),
        ({"configs": [{"steps": 5}]}, "t0 has 5 steps, the last rung is 4"),
        ({"metric": "accuracy"}, "t0 has no metric 'accuracy', only loss, val_loss"),
        ({"configs": [{"every": 3}], "metric": "val_loss"}, "every 3 steps, not after 2, a rung"),
    ],
)
def test_a_sweep_that_cannot_be_is_one_line(more: dict[str, Any], text: str) -> None:
    given = {"configs": [{}], "rungs": RUNGS, "task": trial} | more
    with pytest.raises(WorkloadError) as found:
        Sweep(**given).tasks()
    assert text in str(found.value)
    assert "\n" not in str(found.value)
