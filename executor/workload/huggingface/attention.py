"""Causal attention within each sequence of a microbatch, as transformers calls it.

transformers passes what a model is called with beside its own arguments on to attention, so
`sequence_ids` says which tokens belong together, whatever their values are; with attention of this
name there is no mask at all. torch's kernel for variable lengths takes all sequences at once where
there is one, for half precision on a GPU; otherwise it is one sequence after the other.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from executor.errors import WorkloadError

NAME = "gantry"  # in a config of transformers

_HALF = (torch.float16, torch.bfloat16)
_WIDEST = 256  # of a head, in torch's kernel for variable lengths
_ROWS = 16  # queries at a time where weights are written out, so that memory grows with the tokens
_ODD = (
    -0x2545F4914F6CDD1D,
    -0x61C8864680B583EB,
    -0x40A7B892E31B1A47,
    -0x6B2FB644ECCEEE15,
)  # SplitMix64's, as signed numbers
_UNKNOWN = ("attention_mask", "softcap", "s_aux", "head_mask")


def register() -> None:
    """Let models of transformers have this attention by its name."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sequence_ids: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """(1, heads, tokens, width) -> (1, tokens, heads, width), with fewer heads of keys and values
    than of queries where these share them; WorkloadError for what it does not know."""
    others["attention_mask"] = attention_mask
    told = [name for name in _UNKNOWN if others.get(name) is not None]
    if told or not getattr(module, "is_causal", True):
        raise WorkloadError(
            f"{type(module).__name__} attends with {told[0] if told else 'no order of tokens'}, "
            "which attention within packed sequences does not know; train it without lengths"
        )
    if sequence_ids is None:
        raise WorkloadError(
            f"{type(module).__name__} got no sequence_ids; call model.set_attn_implementation("
            '"sdpa") to use the model outside of its task'
        )
    sizes = sequence_ids.flatten().bincount().tolist()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = query[0], key[0], value[0]
    if not dropout and _has_kernel(q):
        return _at_once(q, k, v, sizes, scale, sliding_window)[None], None
    k, v = (x.repeat_interleave(len(q) // len(x), 0) if len(x) < len(q) else x for x in (k, v))
    if dropout or max(sizes) > (sliding_window or max(sizes)):
        drawn = q.new_empty(q.shape[1] if dropout else 0, dtype=torch.float64).uniform_()
        rule = _Rule(tuple(sizes), scale, sliding_window, dropout, drawn)
        mixed: Tensor = _Written.apply(q, k, v, rule)  # type: ignore[no-untyped-call]
    else:
        each = zip(*(torch.split(x[None], sizes, 2) for x in (q, k, v)), strict=True)
        mix = partial(F.scaled_dot_product_attention, scale=scale, is_causal=True)
        (mixed,) = torch.cat([mix(*part) for part in each], 2)
    return mixed.transpose(0, 1)[None], None


def _has_kernel(q: Tensor) -> bool:
    return q.device.type != "cpu" and q.dtype in _HALF and q.shape[-1] <= _WIDEST


def _at_once(
    q: Tensor, k: Tensor, v: Tensor, sizes: Sequence[int], scale: float, window: int | None
) -> Tensor:
    """All sequences by torch's kernel: (heads, tokens, width) -> (tokens, heads, width)."""
    from torch.nn.attention.varlen import varlen_attn

    ends = torch.tensor([*accumulate(sizes, initial=0)], dtype=torch.int32, device=q.device)
    most, reach = max(sizes), -1 if window is None else window - 1
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    shared, window_size = k.shape[1] < q.shape[1], (reach, 0)
    mixed = varlen_attn(
        q, k, v, ends, ends, most, most, scale=scale, window_size=window_size, enable_gqa=shared
    )
    assert isinstance(mixed, Tensor)
    return mixed


class _Rule(NamedTuple):
    """The settings that turn queries and keys into weights. drawn: a random number for each query,
    which says which of its weights are dropped, so that as many are drawn for each token."""

    sizes: tuple[int, ...]
    scale: float
    window: int | None
    dropout: float
    drawn: Tensor

    @property
    def places(self) -> Iterator["_Place"]:
        """Some queries at a time, and the keys that they may see."""
        for start, stop in pairwise(accumulate(self.sizes, initial=0)):
            for begin in range(start, stop, _ROWS):
                first = max(start, begin - (self.window or stop) + 1)
                end = min(begin + _ROWS, stop)
                yield _Place(slice(begin, end), slice(first, end), first - start)

    def weights(self, q: Tensor, k: Tensor, at: "_Place") -> tuple[Tensor, Tensor]:
        """The weights of these keys for these queries, and the same where some are dropped."""
        scores = q[:, at.rows] @ k[:, at.columns].transpose(1, 2) * self.scale
        far = at.rows.start - at.columns.start
        seen = torch.ones_like(scores[0], dtype=torch.bool).tril(far)
        if self.window:
            seen = seen.triu(far - self.window + 1)
        weights = scores.masked_fill_(~seen, -torch.inf).softmax(-1)
        if not self.dropout:
            return weights, weights
        stays = _stays(self.drawn[at.rows], weights, at.first) >= self.dropout
        return weights, weights * stays / (1 - self.dropout)


class _Place(NamedTuple):
    """Queries and keys by their place in a microbatch; first: of the keys, in their sequence."""

    rows: slice
    columns: slice
    first: int


def _stays(drawn: Tensor, weights: Tensor, first: int) -> Tensor:
    """A number from 0 to 1 for each weight (heads, queries, keys), by what was drawn for its query
    and the place of its key in the sequence: the mixing steps of SplitMix64."""
    heads, _, keys = weights.shape
    own = (drawn * 2.0**53).long()[:, None] * _ODD[0]
    head, key = (torch.arange(n, device=drawn.device) for n in (heads, keys))
    x = own + ((key + first) * heads + head[:, None, None]) * _ODD[1]
    x ^= x >> 30 & (1 << 34) - 1
    x *= _ODD[2]
    x ^= x >> 27 & (1 << 37) - 1
    x *= _ODD[3]
    return (x >> 40 & (1 << 24) - 1) / 2.0**24


class _Written(torch.autograd.Function):
    """Attention whose weights are written out, some at a time, and made again for the backward, so
    that what is kept for it grows with the tokens. (heads, tokens, width) -> the same."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, rule: _Rule) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.rule, mixed = rule, torch.empty_like(q)
        for at in rule.places:
            mixed[:, at.rows] = rule.weights(q, k, at)[1] @ v[:, at.columns]
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        found = [torch.zeros_like(x) for x in ctx.saved_tensors]
        for at in ctx.rule.places:
            _add_gradients(found, ctx, grads[0], at)
        return (*found, None)  # type: ignore[return-value]


def _add_gradients(found: Sequence[Tensor], ctx: Any, grad: Tensor, at: _Place) -> None:
    """Add those of these queries. A function of its own, whose weights are gone when it returns."""
    (q, k, v), (dq, dk, dv), rule = ctx.saved_tensors, found, ctx.rule
    weights, kept = rule.weights(q, k, at)
    own = grad[:, at.rows]
    dv[:, at.columns] += kept.transpose(1, 2) @ own
    by_weight = kept * (own @ v[:, at.columns].transpose(1, 2))
    by_score = by_weight - weights * by_weight.sum(-1, keepdim=True)
    dq[:, at.rows] = by_score @ k[:, at.columns] * rule.scale
    dk[:, at.columns] += by_score.transpose(1, 2) @ q[:, at.rows] * rule.scale
