"""Random draws that tokens alone decide are known of every microbatch; others are refused."""

import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from support.quick import measured
from support.texts import SIZES, cost
from support.tokens import WIDTH, Embedding, Pair, task
from torch import nn

from executor.errors import WorkloadError
from executor.numerics import CpuSource
from executor.profiling.tokens import check_draws
from profiles.curves import draws_of

pytestmark = pytest.mark.usefixtures("untimed")


class Dropping(nn.Dropout):
    """Drops numbers of tokens, and then sometimes everything."""

    def forward(self, pair: Pair) -> Pair:  # type: ignore[override]
        return super().forward(pair[0]) * torch.rand(1), pair[1]


class Pairwise(nn.Module):
    """Drops pairs of tokens, one row after the other so that no memory shows it."""

    def forward(self, pair: Pair) -> Pair:
        kept = [F.dropout(torch.ones(len(pair[0])), 0.1).mean() for _ in range(len(pair[0]))]
        return pair[0] * torch.stack(kept)[:, None], pair[1]


class Chosen(nn.Module):
    """Draws for some tokens only."""

    def forward(self, pair: Pair) -> Pair:
        some = torch.rand(int((pair[0][:, 0] > 0).sum()))
        return pair[0] + 0 * some.sum(), pair[1]


def test_draws_of_a_dropout_are_on_a_line() -> None:
    """The profile has so many at each length, and what one token draws is the slope."""
    made = measured(task(Embedding(), Dropping(0.1), nn.Identity()), 1).tasks[0]
    begin = torch.manual_seed(1).get_state()
    F.dropout(torch.ones(100, WIDTH), 0.1)
    drawn = CpuSource().count(begin, torch.default_generator.get_state())
    assert drawn
    assert draws_of(made.layers[1].costs) == (1, drawn // 100)
    assert [draws_of(made.layers[n].costs) for n in (0, 2)] == [(0, 0), (0, 0)]


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            Pairwise(),
            r"layer 1 \(Pairwise\): draws \d+ random numbers at \d+ tokens and \d+ at",
        ),
        (Chosen(), r"layer 1 \(Chosen\): draws \d+ for data\(0\) and \d+ for data\(\d\) random"),
    ],
)
def test_draws_that_tokens_do_not_decide_are_refused(layer: nn.Module, text: str) -> None:
    """By the name of the layer, with both numbers and the remedy."""
    with pytest.raises(WorkloadError, match=f"task toy: {text}.*; "):
        measured(task(Embedding(), layer, nn.Identity()), 1)


def test_a_gpu_may_draw_nothing() -> None:
    """Its generator moves on by blocks of many tokens."""
    costs = [replace(cost(size, (1, 1, 1)), rng_draws=4) for size in SIZES]
    check_draws("here", costs, shared=True)
    with pytest.raises(WorkloadError, match=r"^here: draws random numbers, on a GPU"):
        check_draws("here", costs, shared=False)
    check_draws("here", [cost(size, (1, 1, 1)) for size in SIZES], shared=False)
