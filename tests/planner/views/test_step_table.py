"""Steps in words and figures."""

from planner.sequences import Step
from planner.views import describe_steps, steps_json

STEPS = [Step(n, 0, 8, 100 + n, 400, 1000 + n, 1500, 900) for n in range(10)]


def test_sums_are_those_of_all_steps() -> None:
    """And there is a row for each, by name."""
    found = steps_json(STEPS)
    assert (found["us"], found["kind_us"], found["bound_us"]) == (10_045, 15_000, 9_000)
    assert found["gap"] == round(1 - 9_000 / 10_045, 6)
    assert found["steps"][3] == {
        **{"step": 3, "kind": 0, "samples": 8, "longest": 103, "tokens": 400, "us": 1003},
        **{"kind_us": 1500, "bound_us": 900, "gap": round(1 - 900 / 1003, 6)},
    }


def test_the_five_worst_steps_are_told_from_the_worst_on() -> None:
    """With the median gap of all and the gap of the run."""
    told = describe_steps("text", STEPS).splitlines()
    assert "gap 10.40%" in told[1]
    at = told.index("the steps with the largest gaps")
    assert [line.split()[0] for line in told[at + 2 :]] == ["9", "8", "7", "6", "5"]
    assert any(line.split()[:2] == ["gap", "10.40%"] for line in told)
