"""Published layer graphs with their optimal cuts, and the order of a published run."""

import json
from itertools import groupby
from pathlib import Path

import pytest

from tests.benchmarks import cuts, varuna
from tests.benchmarks.cuts import solve
from tests.support.layer_graphs import Graph, graphs, profiles_of

DATA = json.loads((Path(__file__).parents[1] / "data" / "published_cuts.json").read_text())


@pytest.mark.parametrize("case", list(graphs(DATA)), ids=lambda case: case.name)
def test_our_bottleneck_is_the_published_one(case: Graph) -> None:
    """AlexNet on 2, 4 and 8 GPUs by PipeDream's rule, BERT on accelerators and a CPU by another."""
    assert solve(case).ours == pytest.approx(case.published_ms, rel=1e-6)


def test_published_stages_cost_what_was_published() -> None:
    """By our reading of PipeDream's rule."""
    (model,) = DATA["models"].values()
    for case, given in zip(profiles_of("", model), model["partitions"], strict=True):
        stage_of = zip((node[0] for node in model["nodes"]), given["stage_of_node"], strict=True)
        nodes = [(node, stage) for node, stage in stage_of if node in case.graph]
        groups = [
            ({node for node, own in nodes if own == stage}, place["replicas"] - 1)
            for stage, place in enumerate(given["stages"])
        ]
        assert case.longest(groups) / case.per_ms == pytest.approx(case.published_ms, rel=1e-6)


def test_a_file_whose_models_are_no_graphs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line; other benchmarks have files with `models` of their own."""
    file = tmp_path / "other.json"
    file.write_text('{"models": {"1.5B": {"layers": 22}}}')
    monkeypatch.setattr("sys.argv", ["cuts", str(file)])
    with pytest.raises(SystemExit, match="2"):
        cuts.main()
    assert "has no models with partitions" in capsys.readouterr().err.splitlines()[-1]


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
