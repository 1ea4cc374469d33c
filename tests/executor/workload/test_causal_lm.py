"""Causal language models of transformers with documents of every length: packed ones have the
losses and gradients of each alone."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from support.causal_lms import documents, gpt2, llama, numbers, row, task
from torch import Tensor, nn
from transformers import BloomConfig, BloomForCausalLM, Gemma2Config, Gemma2ForCausalLM

from executor.errors import WorkloadError
from executor.workload import Task, build, causal_lm
from executor.workload.huggingface import attention
from executor.workload.task import checked

pytestmark = pytest.mark.filterwarnings("default")  # transformers has its own

Found = tuple[float, dict[str, Tensor]]  # a loss, and gradients by name


def of_row(asked: Task, samples: Sequence[int]) -> Found:
    """Of the sum over these documents, in one microbatch."""
    model = build(asked)[0].double()
    inputs, targets = row(asked.data(samples))
    assert asked.loss
    return of_loss(model, asked.loss(model(**inputs), targets))


def of_each(made: Callable[[], nn.Module], rows: Sequence[Sequence[int]], seed: int = 0) -> Found:
    """The same of each document by itself, whose tokens predict the next one."""
    torch.manual_seed(seed)
    model = made().train().double()
    total = torch.zeros((), dtype=torch.float64)
    for ids in (torch.tensor([one]) for one in rows):
        logits = model(input_ids=ids).logits[0, :-1]
        total = total + nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
    return of_loss(model, total)


def of_loss(model: nn.Module, loss: Tensor) -> Found:
    loss.backward()
    named = model.named_parameters()
    return loss.item(), {name: p.grad.clone() for name, p in named if p.grad is not None}


@pytest.mark.parametrize(("name", "model"), [*numbers()])
def test_packed_documents_have_the_loss_and_the_gradients_of_each_alone(
    name: str, model: Callable[[], nn.Module]
) -> None:
    """As transformers computes them one by one; also where keys and values are of fewer heads, and
    where tokens see only some before them."""
    rows = documents()
    assert max(map(len, rows[:5])) > 64
    torch.testing.assert_close(
        of_row(task(model), range(5)), of_each(model, rows[:5]), rtol=1e-9, atol=1e-12
    )


def test_the_model_is_that_of_transformers() -> None:
    """Its class, and the names of its state."""
    model, plain = build(task(llama))[0], llama()
    assert type(model) is type(plain)
    assert model.state_dict().keys() == plain.state_dict().keys()


def attended(asked: dict[str, Any], sizes: Sequence[int], *given: Tensor) -> Tensor:
    """(heads, tokens, width), by sequences of these sizes, with the same random numbers each
    time."""
    torch.manual_seed(0)
    ids = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    q, k, v = (x[None] for x in given)
    found, _ = attention.attend(nn.Identity(), q, k, v, None, sequence_ids=ids, **asked)
    return found[0].transpose(0, 1)


def projected(heads: int, tokens: int, width: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(heads * tokens)
    return [
        torch.randn(heads, tokens, width, generator=generator, dtype=torch.float64)
        for _ in range(3)
    ]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_of_attention_are_those_of_its_forward(
    dropout: float, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without dropout and a window, in sequences longer and shorter than blocks."""
    monkeypatch.setattr(attention, "_ROWS", 4)
    given = [x.requires_grad_() for x in projected(2, 11, 2)]
    asked = {"dropout": dropout, "sliding_window": window, "scaling": 0.7}
    assert torch.autograd.gradcheck(partial(attended, asked, [8, 3]), given)


def test_dropout_is_of_weights_and_leaves_their_mean() -> None:
    """Where all weights are alike and values count keys, each query drops its share; what stays is
    larger by as much, and other numbers drop others."""
    tokens, rate = 512, 0.25
    q, k = torch.zeros(2, tokens, tokens), torch.zeros(2, tokens, tokens)
    v = torch.eye(tokens).expand(2, -1, -1)
    kept = attended({"dropout": rate}, [tokens], q, k, v)
    stays = (kept > 0).tril().float()
    assert kept.triu(1).eq(0).all()
    torch.testing.assert_close(
        kept, stays / torch.arange(1, tokens + 1)[:, None] / (1 - rate), rtol=1e-5, atol=1e-8
    )
    pairs = tokens * (tokens + 1) / 2
    assert stays.sum((1, 2)) / pairs == pytest.approx([1 - rate] * 2, abs=0.005)
    (one, other), whole = stays[:, 1:, 0], stays[0].sum(0) / torch.arange(tokens, 0, -1)
    assert one.ne(other).float().mean() == pytest.approx(2 * rate * (1 - rate), abs=0.06)
    assert whole[: tokens // 2] == pytest.approx([1 - rate] * (tokens // 2), abs=0.12)


def test_a_sequence_draws_as_many_numbers_whatever_shares_its_row() -> None:
    """One for each token, so those of a microbatch are known before it runs."""
    q, k, v = projected(2, 40)
    attended({"dropout": 0.5}, [40], q, k, v)
    first = torch.rand(())
    attended({"dropout": 0.5}, [30, 10], q, k, v)
    assert torch.equal(first, torch.rand(()))


def kernel(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, others: Tensor, *most: int, **asked: Any
) -> Tensor:
    """torch's kernel for variable lengths, as its manual says: (tokens, heads, width)."""
    assert torch.equal(ends, others)
    assert ends.dtype == torch.int32
    assert most == (int(ends.diff().max()),) * 2
    (left, right), many = asked["window_size"], q.shape[1] // k.shape[1]
    assert asked["enable_gqa"] == (many > 1)
    found = []
    for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        rows, keys = torch.arange(end - begin)[:, None], torch.arange(end - begin)
        seen = keys <= rows + right
        seen &= (keys >= rows - left) if left >= 0 else True
        part = (x[begin:end].transpose(0, 1).repeat_interleave(n, 0) for x, n in
                ((q, 1), (k, many), (v, many)))  # fmt: skip
        mix = nn.functional.scaled_dot_product_attention
        found.append(mix(*part, attn_mask=seen, scale=asked["scale"]).transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("window", [None, 5])
def test_torchs_kernel_gets_all_sequences_at_once(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is one it gives what one sequence after the other does."""
    q, (k, v, _) = projected(4, 30)[0], projected(2, 30)
    asked = {"sliding_window": window}
    expected = attended(asked, [17, 12, 1], q, k, v)
    monkeypatch.setattr(attention, "_has_kernel", lambda q: True)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    torch.testing.assert_close(attended(asked, [17, 12, 1], q, k, v), expected)


def test_the_last_token_of_a_document_predicts_nothing() -> None:
    """Every other one predicts the next."""
    ((inputs, targets), (_, single)) = task(llama, [[5, 6, 7], [8], [1, 2]], batch=2).data([0, 1])
    assert inputs["input_ids"].tolist() == [5, 6, 7]
    assert targets.tolist() == [6, 7, -100]
    assert single.tolist() == [-100]


@pytest.mark.parametrize(
    "more",
    [
        {"labels": [-100, -100, 7, 8]},
        {"completion_mask": [0, 0, 1, 1]},
        {"assistant_masks": [1, 0, 1, 1], "labels": [5, -100, 7, 8]},
    ],
)
def test_what_is_no_answer_is_not_predicted(more: dict[str, list[int]]) -> None:
    """Labels and masks are for the token that is predicted, as with TRL."""
    asked = task(llama, [{"input_ids": [5, 6, 7, 8]} | more], batch=1)
    ((_, targets),) = asked.data([0])
    assert targets.tolist() == [-100, 7, 8, -100]


def test_long_documents_are_cut() -> None:
    """Their first tokens are kept, and their labels with them."""
    rows = [{"input_ids": torch.arange(9), "labels": torch.arange(9)}, {"input_ids": [1, 2]}]
    asked = task(llama, rows, batch=1, longest=4)
    assert asked.lengths.tolist() == [4, 2]
    ((inputs, targets),) = asked.data([0])
    assert inputs["input_ids"].tolist() == [0, 1, 2, 3]
    assert targets.tolist() == [1, 2, 3, -100]


def test_held_out_documents_are_for_evaluation() -> None:
    """After so many steps each, by default after the last."""
    asked = task(llama, held_out=[[1, 2], [3, 4, 5]], every=2)
    assert checked("x", [asked])
    assert asked.evaluate
    assert asked.evaluate.every == 2
    assert asked.evaluate.lengths.tolist() == [2, 3]
    last = task(llama, held_out=[[1, 2]]).evaluate
    assert last
    assert last.every == asked.steps


BLOOM = {"vocab_size": 64, "hidden_size": 16, "n_layer": 1, "n_head": 2}
GEMMA2 = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: BloomForCausalLM(BloomConfig(**BLOOM)), "Bloom.* attention that cannot be exch"),
        (partial(nn.Linear, 2, 2), "Linear has attention that cannot be exchanged"),
        (partial(gpt2, n_positions=100), "has 155 tokens, GPT2LMHeadModel takes 100.*longest=100"),
    ],
)
def test_a_model_that_cannot_be_packed_is_refused(
    model: Callable[[], nn.Module], text: str
) -> None:
    """By name, when it is built."""
    with pytest.raises(WorkloadError, match=text):
        build(task(model))


def test_attention_that_is_not_known_is_refused() -> None:
    """Rather than computed in another way; and so is a call without sequences."""
    asked = task(lambda: Gemma2ForCausalLM(Gemma2Config(**GEMMA2)))
    with pytest.raises(WorkloadError, match="Gemma2Attention attends with softcap, which"):
        of_row(asked, [0, 1])
    model, _ = build(task(llama))
    with pytest.raises(WorkloadError, match=r'got no sequence_ids; call .*"sdpa"'):
        model(input_ids=torch.ones(1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("rows", "text"),
    [([[1], [], [2]], "document 1 of 3 has no tokens; leave it out"), ([], "no documents; give")],
)
def test_documents_without_tokens_are_refused(rows: list[list[int]], text: str) -> None:
    """With the number of the first."""
    with pytest.raises(WorkloadError, match=text):
        causal_lm("lm", llama, rows, batch=1, steps=1, optimizer=torch.optim.AdamW)
