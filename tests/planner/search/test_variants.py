"""Searches of their own, for ties and casts: what one has found is kept whatever the next does."""

import pytest
from support import apart
from support.searches import SHORT

from planner.errors import NoPlanFound
from planner.inputs import Effort
from planner.search import variants
from planner.search.task import Candidate, Search

TIED = apart.problem(apart.synthetic_task(((0, 4),)), 1 << 24)


def test_time_that_is_up_for_the_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied layers joined are planned, and those apart are late: the first plan counts."""
    real, searched = Search.best, list[bool]()

    def late(search: Search, effort: Effort) -> Candidate:
        searched.append(search.apart)
        if search.apart:
            raise NoPlanFound("late")
        return real(search, effort)

    monkeypatch.setattr(Search, "best", late)
    (kind,) = TIED.kinds
    found = variants.best_alone((kind, kind.tasks[0], TIED.host_bytes), Effort(1e12, 0, SHORT))
    assert isinstance(found, Candidate)
    assert searched == [False, True]


def test_time_that_is_up_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned, and nothing is called infeasible."""

    def late(search: Search, effort: Effort) -> Candidate:
        raise NoPlanFound("late")

    monkeypatch.setattr(Search, "best", late)
    (kind,) = TIED.kinds
    with pytest.raises(NoPlanFound):
        variants.best_alone((kind, kind.tasks[0], TIED.host_bytes), Effort(1e12, 0, SHORT))
