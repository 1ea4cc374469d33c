"""Architectures against the sizes of the published models."""

import pytest

from planner.estimate.kernels import Size
from planner.estimate.layers import chain, parameters
from planner.estimate.models import MODELS

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


def test_gpt3_is_gpt_neo_but_for_three_biases() -> None:
    """GPT-Neo 2.7B, of the same shape without biases of q, k and v, has 2,651,307,520."""
    model = MODELS["gpt3-2.7b"]
    biases = 3 * model.width * model.blocks
    assert parameters(model) - untied("gpt3-2.7b") - biases == 2_651_307_520


def test_vit_2b_is_vit_h_with_more_blocks() -> None:
    """110 blocks instead of 32, nothing else: 2 billion to within a tenth."""
    deep, huge = MODELS["vit-2b"], MODELS["vit-h"]
    _, block, _ = chain(Size(huge, 1, huge.sequence, 4))
    assert parameters(deep) - parameters(huge) == (110 - 32) * sum(block.tensors)
    assert parameters(deep) == pytest.approx(2e9, rel=0.1)


def test_every_model_is_held_against_a_published_size() -> None:
    """No architecture is in the table without an oracle for its parameters."""
    assert {*PUBLISHED, *STATED, "vit-2b"} == set(MODELS)
