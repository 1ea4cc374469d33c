"""Kernels and bytes of layers against formulas of the literature."""

import pytest

from planner.estimate.kernels import Size
from planner.estimate.layers import chain, parameters
from planner.estimate.models import MODELS


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
