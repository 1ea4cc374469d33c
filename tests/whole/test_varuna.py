"""The order of a published run, and a pipeline by hand."""

from itertools import groupby
from pathlib import Path

import pytest

from tests.benchmarks import varuna


def test_a_file_without_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line; other benchmarks have other files."""
    file = tmp_path / "other.json"
    file.write_text('{"runs": {}}')
    monkeypatch.setattr("sys.argv", ["varuna", str(file)])
    with pytest.raises(SystemExit, match="2"):
        varuna.main()
    assert "has no runs of measured pipelines" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("stage", "begin"),
    [(12, "F43 b43"), (36, "F36 b3 F3 b3 F3 b3 F1 b34"), (46, "F6 b3 F3 b3 F3 b3 F3")],
)
def test_varunas_order_is_the_one_of_its_run(stage: int, begin: str) -> None:
    """As logged (github.com/microsoft/varuna 5ec64f3, Megatron-LM/gantt_logs, stages of 49); b: a
    recomputation and its backward."""
    passes = "".join(kind for kind, _ in varuna.varuna(49, 43)[stage])
    runs = groupby(passes.replace("RB", "b"))
    assert " ".join(f"{kind}{len(list(run))}" for kind, run in runs).startswith(begin)


def test_a_pipeline_of_two_stages_by_hand() -> None:
    """Two microbatches in Varuna's order. The last stage is done with them after 45 and 75; the
    first one recomputes before the gradient of each is there, or needs ten more at the end."""
    passes = {"F": 10, "R": 10, "B": 20}, {"F": 10, "B": 20}
    run = varuna.Run(2, passes, send=(5,), start=100)
    order = varuna.varuna(2, 2)
    assert run.ends(order) == [200, 175]
    assert run.bound() == 200
    assert run.recomputing_late().ends(order) == [210, 175]
