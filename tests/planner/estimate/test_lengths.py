"""Estimates of tasks whose samples have lengths: against estimates of batches, and bad files."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli import planner_cli, refused

import plans
import profiles
from planner.cli import parser
from planner.estimate.lengths import read
from planner.estimate.profile import Spec, estimate
from profiles.curves import curves_of, us
from profiles.errors import FormatError
from profiles.schema import Task

LENGTHS = np.array([300, 900, 4000, 17, 2200, 1024, 700, 3000], np.uint32)
SPEC = Spec("llama-7b", "h100", 4)


def task_by(lengths: np.ndarray) -> Task:
    return estimate(SPEC, lengths=lengths).tasks[0]


def test_it_is_a_sound_profile_whose_curves_fit() -> None:
    """It passes the semantic check, and no curve is off by more than 5 %."""
    made = estimate(SPEC, lengths=LENGTHS)
    assert profiles.violations(made) == []
    for layer in made.tasks[0].layers:
        assert all(curve.off_ppm < 50_000 for curve in curves_of(layer.costs))


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("tokens", [512, 2048])
def test_equal_sequences_in_a_microbatch_take_what_a_batch_of_them_does(
    samples: int, tokens: int
) -> None:
    """Times of packed sequences are those of the same estimate for a batch of equal ones."""
    batch = Spec("llama-7b", "h100", samples, sequence=tokens, microbatches=(samples,))
    for layer, other in zip(task_by(LENGTHS).layers, estimate(batch).tasks[0].layers, strict=True):
        for curve in curves_of(layer.costs):
            time = getattr(other.costs[0], curve.op).median_us
            mine = us(curve, samples * tokens, samples * tokens**2)
            assert mine == pytest.approx(time, rel=0.05, abs=3)


def test_the_command_writes_what_build_plans(tmp_path: Path) -> None:
    """From a list of lengths to a proven plan with its table."""
    given, profile, plan = (tmp_path / name for name in ("lengths.json", "p.json", "plan.json"))
    given.write_text(json.dumps({"lengths": [200, 500, 90, 1000]}))
    asked = ["estimate", "gpt2", "--gpu", "4090", "--batch", "2", "--lengths", str(given)]
    assert parser.main([*asked, "--steps", "2", "-o", str(profile)]) == 0
    assert parser.main(["build", str(profile), "-o", str(plan)]) == 0
    plans.prove_tables(plans.load(plan), plan)
    sized = ("--device-memory", "8GiB", "--microbatch", "2")
    refused(planner_cli("sweep", profile, *sized), 2, "with which --microbatch does not go")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[3, 0, 5]", "sample 1 has 0 tokens, expected 1 to"),
        ("[3, 2.5]", "expected a list of whole numbers"),
        ("[]", "expected a list of whole numbers"),
        ('{"length": [3]}', "expected a list of whole numbers"),
        ("[[3], [4]]", "expected a list of whole numbers"),
        ("[[3], [4, 5]]", "is neither JSON nor a numpy array"),
        ("3, 4", "is neither JSON nor a numpy array"),
    ],
)
def test_files_that_are_no_lengths_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """One line says the file and what is wrong in it."""
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """As one that cannot be read."""
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read(tmp_path / "none.npy")


def test_arrays_and_lists_give_the_same(tmp_path: Path) -> None:
    """A numpy file and a list in JSON."""
    np.save(tmp_path / "a.npy", LENGTHS)
    (tmp_path / "a.json").write_text(json.dumps(LENGTHS.tolist()))
    assert (read(tmp_path / "a.npy") == read(tmp_path / "a.json")).all()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec("gpt2", "4090", 4), "gpt2 has 1024 positions, the longest sample has 4000"),
        (Spec("vit-b", "4090", 4), "vit-b sees images of one size"),
        (Spec("llama-7b", "h100", 9), "a step has 9 samples, but there are only 8 lengths"),
        (Spec("llama-7b", "h100", 4, sequence=64), "--seq does not go with --lengths"),
        (Spec("llama-7b", "h100", 4, microbatches=(1,)), "--microbatch does not go"),
    ],
)
def test_what_does_not_go_with_lengths_is_refused(spec: Spec, words: str) -> None:
    """One line, before anything is written."""
    with pytest.raises(FormatError, match=words):
        estimate(spec, lengths=LENGTHS)
