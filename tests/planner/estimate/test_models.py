"""Estimates: models and layers as they are published, and samples of every length."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.cli import planner_cli, refused

import plans
import profiles
from planner.cli import parser
from planner.estimate.kernels import Size
from planner.estimate.layers import chain, parameters
from planner.estimate.lengths import read
from planner.estimate.models import MODELS
from planner.estimate.profile import Spec, estimate
from profiles.curves import curves_of, us
from profiles.errors import FormatError
from profiles.schema import Task

# Of the published checkpoints; GPT and BERT tie the head to the embedding, BERT without pooler.
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-32b": 32_528_943_616,
    "llama-70b": 68_976_648_192,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "vit-b": 86_567_656,
    "vit-l": 304_326_632,
    "vit-h": 632_045_800,
}
# Sizes that are only stated in billions.
STATED = {"gpt3-xl": 1.3, "gpt3-2.7b": 2.7, "gpt3-6.7b": 6.7, "gpt3-13b": 13}


def untied(name: str) -> int:
    """Parameters that a model has here and not where its head is tied to the embedding."""
    model = MODELS[name]
    return model.vocabulary * model.width if model.family in ("gpt", "bert") else 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_model(name: str) -> None:
    """To the parameter, once the head's own copy of a tied embedding is taken off."""
    assert parameters(MODELS[name]) - untied(name) == PUBLISHED[name]


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_near_the_stated_size(name: str) -> None:
    """Within 2 % where only billions are published."""
    assert parameters(MODELS[name]) - untied(name) == pytest.approx(STATED[name] * 1e9, rel=0.02)


def test_vit_2b_is_vit_h_with_more_blocks() -> None:
    """110 blocks instead of 32, nothing else: 2 billion to within a tenth."""
    deep, huge = MODELS["vit-2b"], MODELS["vit-h"]
    _, block, _ = chain(Size(huge, 1, huge.sequence, 4))
    assert parameters(deep) - parameters(huge) == (110 - 32) * sum(block.tensors)
    assert parameters(deep) == pytest.approx(2e9, rel=0.1)


def test_every_model_is_held_against_a_published_size() -> None:
    """No architecture is in the table without an oracle for its parameters."""
    assert {*PUBLISHED, *STATED, "vit-2b"} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_products_are_six_flops_per_parameter_and_token(name: str) -> None:
    """Forward and backward: 6 per parameter of a product; attention 4 s d and 10 s d, or half."""
    model = MODELS[name]
    size = Size(model, 4, model.sequence, 2)
    embedding, block, head = chain(size)
    done = [embedding, *[block] * model.blocks, head]
    flops = sum(kernel.flops for one in done for kernel in (*one.forward, *one.backward))
    tables = 0 if model.family == "vit" else sum(embedding.tensors)  # gathered
    causal = 2 if model.family in ("gpt", "llama") else 1
    attention = 14 * model.sequence * model.width * model.blocks // causal
    expected = size.tokens * (6 * (parameters(model) - tables) + attention)
    assert flops == pytest.approx(expected, rel=0.03)


def test_a_gpt_block_keeps_sixteen_numbers_per_token_and_width() -> None:
    """Korthikanti et al. 2022: 34 s b h bytes in 16 bits, less 2 of dropout masks and scores."""
    model = MODELS["gpt3-6.7b"]
    size = Size(model, 4, 2048, 2)
    _, block, _ = chain(size)
    statistics = size.tokens * (4 * model.heads + 4 * 4)
    kept = sum(block.kept) + block.output
    assert kept == 32 * size.tokens * model.width + statistics


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
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=words):
        read(path)


def test_arrays_and_lists_give_the_same(tmp_path: Path) -> None:
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
    with pytest.raises(FormatError, match=words):
        estimate(spec, lengths=LENGTHS)
