"""The kernels of one layer on one microbatch, and the bytes alive at once.

d = width, f = width of the MLP. Kept for backward is what Korthikanti et al. 2022 (section 4.1)
count for a transformer layer, less the dropout masks and the s x s scores, plus the statistics of
norms and attention in fp32: for a GPT block, output included, 16 numbers per token and width. A
layer's input lies in the slab and is not counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.estimate.kernels import (
    FLOAT,
    INDEX,
    Kernel,
    Op,
    Size,
    activation,
    add_table,
    attention,
    cross_entropy,
    gather,
    linear,
    norm,
    passes,
    residual,
)
from planner.estimate.models import CHANNELS, CLASSES, Family, Model
from profiles.codec import align


@dataclass(frozen=True, slots=True)
class Work:
    """One layer and one microbatch. Bytes are of tensors beside the slab.

    ops: in forward order; the loss belongs to the head's backward. kept: what backward needs, a
    tensor each, without the output. forward_peak: most alive at once in a forward without
    gradients, output included. backward_extra: most alive beside kept and output in backward.
    """

    ops: Sequence[Op]
    kept: tuple[int, ...]
    output: int
    forward_peak: int
    backward_extra: int

    @property
    def kept_bytes(self) -> int:
        """Packed, every tensor aligned."""
        return sum(align(tensor) for tensor in self.kept)

    @property
    def tensors(self) -> list[int]:
        """The sizes of the parameter tensors, in numbers."""
        return [count for op in self.ops for count in op.tensors]

    @property
    def forward(self) -> list[Kernel]:
        return [kernel for op in self.ops for kernel in op.forward]

    @property
    def backward(self) -> list[Kernel]:
        return [kernel for op in reversed(self.ops) for kernel in op.backward]

    @property
    def later(self) -> list[Kernel]:
        """The part of the backward that only weights need."""
        return [kernel for op in reversed(self.ops) for kernel in op.later]

    @property
    def left_bytes(self) -> int:
        """The bytes that that part needs."""
        return sum(align(tensor) for op in self.ops for tensor in op.left)

    @property
    def kept_grad_bytes(self) -> int:
        """Those of them that are gradients."""
        return sum(align(tensor) for op in self.ops for tensor in op.left[1:])


def chain(z: Size) -> tuple[Work, Work, Work]:
    """The kernels and bytes of the model's embedding, of each of its blocks, and of its head."""
    embedding, block, head = _CHAINS[z.model.family]
    return embedding(z), block(z), head(z)


def parameters(model: Model) -> int:
    """All parameters, the head's own included."""
    embedding, block, head = chain(Size(model, 1, model.sequence, FLOAT))
    return sum(embedding.tensors) + model.blocks * sum(block.tensors) + sum(head.tensors)


def _norm_stats(z: Size) -> int:
    """Mean and reciprocal deviation of every token."""
    return 2 * FLOAT * z.tokens


def _block(z: Size) -> Work:
    """GPT, ViT: norm, attention, residual, norm, MLP, residual. BERT: norms after residuals."""
    d, f, family = z.model.width, z.model.ffn, z.model.family
    inner, wide = z.of(d), z.of(f)
    first = [linear(z, d, d)] * 3 if family == "bert" else [linear(z, d, 3 * d)]
    attend = [*first, attention(z, causal=family == "gpt"), linear(z, d, d)]
    mlp = [linear(z, d, f), activation(z, f), linear(z, f, d)]
    if family == "bert":
        ops = [*attend, residual(z), norm(z), *mlp, residual(z), norm(z)]
    else:
        ops = [norm(z), *attend, residual(z), norm(z), *mlp, residual(z)]
    # q, k, v; what attention gives; three in or out of norms; before and after the activation.
    tensors = (3 * inner, inner, inner, inner, inner, wide, wide)
    stats = (FLOAT * z.model.heads * z.tokens, _norm_stats(z), _norm_stats(z))
    return Work(
        ops,
        kept=tensors + stats,
        output=inner,
        # At the activation, beside the MLP's input and, where that is a norm's, the residual.
        forward_peak=(1 if family == "bert" else 2) * inner + 2 * wide,
        backward_extra=wide + d * f * z.number,  # gradients of the activation and of a weight
    )


def _llama_block(z: Size) -> Work:
    d, f, kv = z.model.width, z.model.ffn, z.model.kv_width
    inner, wide = z.of(d), z.of(f)
    project = [linear(z, d, width, bias=False) for width in (d, kv, kv)]
    rotate = [passes(z, width, forward=2, backward=(2,)) for width in (d, kv)]
    attend = [*project, *rotate, attention(z, causal=True), linear(z, d, d, bias=False)]
    gated = [*[linear(z, d, f, bias=False)] * 2, activation(z, f)]
    product = passes(z, f, forward=3, backward=(5,))
    mlp = [*gated, product, linear(z, f, d, bias=False)]
    # q, k, v; norms' outputs, residual, what attention gives; gate, its activation, up, product.
    tensors = (z.of(d + 2 * kv), inner, inner, inner, inner, wide, wide, wide, wide)
    stats = (FLOAT * z.model.heads * z.tokens, FLOAT * z.tokens, FLOAT * z.tokens)
    return Work(
        [norm(z), *attend, residual(z), norm(z), *mlp, residual(z)],
        kept=tensors + stats,
        output=inner,
        forward_peak=2 * inner + 3 * wide,  # at the product, beside residual and norm
        backward_extra=max(wide + d * f * z.number, 2 * wide),
    )


def _tables(z: Size) -> Work:
    """Token embeddings, and for GPT learned positions."""
    d, inner = z.model.width, z.of(z.model.width)
    words = gather(z, z.model.vocabulary)
    learned = [add_table(z)] if z.model.positions else []
    peak = 2 * inner + z.sequence * d * z.number if learned else inner
    return Work(
        [words, *learned],
        kept=(INDEX * z.sequence,) if learned else (),  # the positions themselves
        output=inner,
        forward_peak=peak,
        backward_extra=z.model.vocabulary * d * z.number,
    )


def _bert_tables(z: Size) -> Work:
    """Words, types and positions, then a norm, which keeps its input."""
    inner = z.of(z.model.width)
    table = z.model.vocabulary * z.model.width * z.number
    return Work(
        [gather(z, z.model.vocabulary), gather(z, 2), residual(z), add_table(z), norm(z)],
        kept=(inner, _norm_stats(z), INDEX * z.tokens, INDEX * z.sequence),  # types, positions
        output=inner,
        forward_peak=3 * inner,
        backward_extra=table,
    )


def _patches(z: Size) -> Work:
    """Patches as a product, the class token put before them, positions added."""
    d, inputs = z.model.width, CHANNELS * z.model.patch**2
    inner = z.of(d)
    cut = linear(z, inputs, d, rows=z.samples * (z.sequence - 1))
    return Work(
        [cut, passes(z, d, forward=2, backward=(2,), tensors=(d,)), add_table(z)],
        kept=(),
        output=inner,
        forward_peak=3 * inner,
        backward_extra=inner + max(inner, inputs * d * z.number),
    )


def _head(z: Size) -> Work:
    """A norm, logits over the vocabulary, and the loss; BERT transforms first."""
    d, vocabulary = z.model.width, z.model.vocabulary
    inner, logits = z.of(d), z.tokens * vocabulary
    bert = z.model.family == "bert"
    first = [linear(z, d, d), activation(z, d)] if bert else []
    # Gradients of log-softmax's output and input; or, that gone, of logits, weight and input.
    losses = 2 * FLOAT * logits
    weights = z.number * (logits + vocabulary * d) + inner - FLOAT * logits
    return Work(
        [*first, norm(z), linear(z, d, vocabulary, bias=bert), cross_entropy(z, logits)],
        kept=(*[inner] * (3 if bert else 1), _norm_stats(z), FLOAT * logits),
        output=z.number * logits,
        forward_peak=inner + z.number * logits,
        backward_extra=max(losses, weights),
    )


def _class_head(z: Size) -> Work:
    """A norm of all tokens; the class token alone goes on."""
    inner, logits = z.of(z.model.width), z.samples * CLASSES
    return Work(
        [
            norm(z),
            linear(z, z.model.width, CLASSES, rows=z.samples),
            cross_entropy(z, logits),
        ],
        kept=(inner, _norm_stats(z), FLOAT * logits),
        output=z.number * logits,
        forward_peak=inner + z.number * logits,
        backward_extra=max(2 * inner, z.number * (logits + CLASSES * z.model.width)),
    )


_CHAINS: dict[Family, tuple[Callable[[Size], Work], ...]] = {
    "gpt": (_tables, _block, _head),
    "llama": (_tables, _llama_block, _head),
    "bert": (_bert_tables, _block, _head),
    "vit": (_patches, _block, _class_head),
}
