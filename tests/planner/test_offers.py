"""A table of GPUs: what each makes of a training, and what that costs."""

import re

import pytest
from support.cli import planner_cli, refused, succeeded

pytestmark = pytest.mark.usefixtures("quick")

ASKED = ("estimate", "gpt2", "--batch", 1, "--seq", 64, "--microbatch", 1, "--steps", 720_000)


def rows(*more: object) -> list[list[str]]:
    """The lines of the table in words, without its head."""
    said = succeeded(planner_cli(*ASKED, *more)).out
    return [line.replace(" GiB", "").split() for line in said.splitlines()[2:]]


def test_the_gpu_that_costs_least_stands_first() -> None:
    """Cost is hours times a price, and hours are steps times a step; a GPU without a price is
    last."""
    found = rows("--gpu", "H100,4090,l4", "--price", "h100=3,L4=0.01")
    assert [row[0] for row in found] == ["l4", "h100", "4090"]
    for _, memory, step, unit, tax, hours, price, cost in found:
        assert (float(memory), float(tax)) == (pytest.approx(float(memory)), 1.0)
        assert unit == "ms"
        assert float(hours) == pytest.approx(float(step) / 1000 * 720_000 / 3600, rel=0.02)
        if price != "-":
            assert float(cost) == pytest.approx(float(hours) * float(price), rel=0.02, abs=0.01)
    assert found[-1][-2:] == ["-", "-"]


def test_a_gpu_that_the_task_does_not_fit_says_what_would_do() -> None:
    """In a line of its own, in place of a row."""
    said = succeeded(planner_cli(*ASKED, "--gpu", "l4", "--device-memory", "16MiB")).out
    assert re.fullmatch(r"l4: infeasible: .* smallest --device-memory .*", said.splitlines()[1])


def test_a_table_has_no_profile_and_a_profile_no_table() -> None:
    """Each in one line."""
    refused(planner_cli(*ASKED, "--gpu", "h100,l4", "-o", "x.json"), 2, "-o writes the profile of")
    refused(planner_cli(*ASKED, "--gpu", "h100", "--price", "l4=1"), 2, "--price l4: is not among")
    refused(planner_cli(*ASKED, "--gpu", "h100", "--price", "h100=x"), 2, "'x' is not a positive p")
    refused(planner_cli(*ASKED, "--gpu", "h100,none"), 2, "GPU 'none' is not known; there are")
