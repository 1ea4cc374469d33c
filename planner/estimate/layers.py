"""The kernels of one layer on one microbatch, and the bytes alive at once.

d = width, f = width of the MLP. Kept for backward is what Korthikanti et al. 2022 (section 4.1)
count for a transformer layer, less the dropout masks and the s x s scores, plus the statistics of
norms and attention in fp32: for a GPT block, output included, 16 numbers per token and width. A
layer's input lies in the slab and is not counted.
"""

from collections.abc import Sequence
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
from planner.estimate.models import CHANNELS, CLASSES, Model
from profiles.codec import align


@dataclass(frozen=True, slots=True)
class LayerWork:
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


def chain(z: Size) -> tuple[LayerWork, LayerWork, LayerWork]:
    """The kernels and bytes of the model's embedding, of each of its blocks, and of its head."""
    embedding = _patches(z) if z.model.family == "vit" else _tables(z)
    return embedding, _block(z), _head(z)


def parameters(model: Model) -> int:
    """All parameters, the head's own included."""
    embedding, block, head = chain(Size(model, 1, model.sequence, FLOAT))
    return sum(embedding.tensors) + model.blocks * sum(block.tensors) + sum(head.tensors)


def _norm_stats(z: Size) -> int:
    """Mean and reciprocal deviation of every token."""
    return 2 * FLOAT * z.tokens


def _block(z: Size) -> LayerWork:
    """GPT, ViT, Llama: norm, attention, residual, norm, MLP, residual. BERT: norms after residuals.
    Llama: no biases, rotated queries and keys, a gated MLP."""
    d, f, kv, family = z.model.width, z.model.ffn, z.model.kv_width, z.model.family
    inner, wide, bert, llama = z.of(d), z.of(f), family == "bert", family == "llama"
    widths = (d, kv, kv) if llama or bert else (3 * d,)
    rotated = [passes(z, width, forward=2, backward=(2,)) for width in (d, kv)] if llama else []
    up, down = linear(z, d, f, bias=not llama), linear(z, f, d, bias=not llama)
    product = [passes(z, f, forward=3, backward=(5,))] if llama else []
    mlp = [*[up] * (2 if llama else 1), activation(z, f), *product, down]
    attend = [
        *(linear(z, d, width, bias=not llama) for width in widths),
        *rotated,
        attention(z, causal=family in ("gpt", "llama")),
        linear(z, d, d, bias=not llama),
    ]
    # q, k, v; what attention gives; three in or out of norms; before and after the activation, for
    # Llama its other factor and the product as well.
    tensors = (z.of(d + 2 * kv), *[inner] * 4, *[wide] * (4 if llama else 2))
    stats = FLOAT * z.tokens if llama else _norm_stats(z)  # of a norm; RMS norms have no mean
    weight = wide + d * f * z.number  # gradients of the activation and of a weight
    return LayerWork(
        [*attend, residual(z), norm(z), *mlp, residual(z), norm(z)]
        if bert
        else [norm(z), *attend, residual(z), norm(z), *mlp, residual(z)],
        kept=(*tensors, FLOAT * z.model.heads * z.tokens, stats, stats),
        output=inner,
        # At the activation or the product, beside the MLP's input and, where that is a norm's, the
        # residual.
        forward_peak=(1 if bert else 2) * inner + (3 if llama else 2) * wide,
        backward_extra=max(weight, 2 * wide) if llama else weight,
    )


def _tables(z: Size) -> LayerWork:
    """Token embeddings, and learned positions; BERT has types too, and then a norm, which keeps its
    input."""
    d, inner, positions = z.model.width, z.of(z.model.width), INDEX * z.sequence
    ops, kept, peak = [gather(z, z.model.vocabulary)], tuple[int, ...](), inner
    if z.model.family == "bert":
        ops += [gather(z, 2), residual(z), add_table(z), norm(z)]
        kept, peak = (inner, _norm_stats(z), INDEX * z.tokens, positions), 3 * inner
    elif z.model.positions:
        ops += [add_table(z)]
        kept, peak = (positions,), 2 * inner + z.sequence * d * z.number
    return LayerWork(ops, kept, inner, peak, backward_extra=z.model.vocabulary * d * z.number)


def _patches(z: Size) -> LayerWork:
    """Patches as a product, the class token put before them, positions added."""
    d, inputs = z.model.width, CHANNELS * z.model.patch**2
    inner = z.of(d)
    cut = linear(z, inputs, d, rows=z.samples * (z.sequence - 1))
    ops = [cut, passes(z, d, forward=2, backward=(2,), tensors=(d,)), add_table(z)]
    return LayerWork(ops, (), inner, 3 * inner, inner + max(inner, inputs * d * z.number))


def _head(z: Size) -> LayerWork:
    """A norm, logits and the loss: over the vocabulary, which BERT transforms for first, or over
    classes, of ViT's class token alone."""
    d, family, inner = z.model.width, z.model.family, z.of(z.model.width)
    rows, words = (z.samples, CLASSES) if family == "vit" else (z.tokens, z.model.vocabulary)
    logits, bert = rows * words, family == "bert"
    # Gradients of log-softmax's output and input; or, that gone, of logits, weight and input.
    extra = max(2 * FLOAT * logits, z.number * (logits + words * d) + inner - FLOAT * logits)
    if family == "vit":
        extra = max(2 * inner, z.number * (logits + words * d))
    return LayerWork(
        [
            *([linear(z, d, d), activation(z, d)] if bert else []),
            norm(z),
            linear(z, d, words, bias=family in ("bert", "vit"), rows=rows),
            cross_entropy(z, logits),
        ],
        kept=(*[inner] * (3 if bert else 1), _norm_stats(z), FLOAT * logits),
        output=z.number * logits,
        forward_peak=inner + z.number * logits,
        backward_extra=extra,
    )
