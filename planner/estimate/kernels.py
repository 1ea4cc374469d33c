"""The operators of transformers: FLOPs and bytes of each kernel they launch.

A kernel is a matrix product (FLOPs and bytes) or a pass over memory (bytes alone); its time is for
`estimate` to tell. Backward runs two products for each one of forward, and 2.5 times the FLOPs of
attention (Dao 2023). Attention is fused (no s x s matrix in memory) and halved where causal;
norms are fused; there is no dropout.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.estimate.models import CHANNELS, PIXELS, Model

INDEX = 8  # bytes of a token id or a label (int64)
FLOAT = 4  # bytes of what is kept or summed in fp32 whatever the parameters are


class Kernel(NamedTuple):
    """One launch. `attention`: its FLOPs run at the rate of fused attention."""

    flops: int
    moved: int
    attention: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """An operator: the kernels of its forward and of its backward, and how many numbers each of its
    parameter tensors has. later: the kernels of its backward that only weights need; left: bytes
    that these need, a tensor each."""

    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    tensors: tuple[int, ...] = ()
    later: tuple[Kernel, ...] = ()
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """A model's microbatch: samples, tokens of each, bytes of a number."""

    model: Model
    samples: int
    sequence: int
    number: int

    @property
    def tokens(self) -> int:
        return self.samples * self.sequence

    def of(self, width: int) -> int:
        """Bytes of a tensor of `width` numbers per token."""
        return self.tokens * width * self.number

    @property
    def input_bytes(self) -> int:
        if self.model.family == "vit":
            return self.samples * CHANNELS * PIXELS**2 * self.number
        return self.tokens * INDEX

    @property
    def target_bytes(self) -> int:
        return INDEX * (self.samples if self.model.family == "vit" else self.tokens)


def operator(
    z: Size, forward: Kernel, backward: Iterable[Kernel], tensors: tuple[int, ...] = ()
) -> Op:
    """An operator with parameters: autograd makes the gradient of each anew and adds it to the one
    that is there; it reads both and writes one."""
    added = (Kernel(0, 3 * count * z.number) for count in tensors)
    return Op((forward,), (*backward, *added), tensors)


def linear(z: Size, inputs: int, outputs: int, *, bias: bool = True, rows: int = 0) -> Op:
    """A product with a weight, of every token or of `rows` rows.

    Backward makes the gradients of input and weight, and sums the bias's.
    """
    rows = rows or z.tokens
    numbers = rows * inputs + rows * outputs + inputs * outputs
    product = Kernel(2 * rows * inputs * outputs, numbers * z.number)
    summed = (Kernel(0, rows * outputs * z.number),) if bias else ()
    weight = inputs * outputs
    tensors = (weight, outputs) if bias else (weight,)
    made = operator(z, product, (product, product, *summed), tensors)
    later = (product, Kernel(0, 3 * weight * z.number))
    return replace(made, later=later, left=(rows * inputs * z.number, rows * outputs * z.number))


def attention(z: Size, *, causal: bool) -> Op:
    """Softmax of queries by keys, by values: 4 s^2 d FLOPs a sample, half of that if causal."""
    model = z.model
    flops = 4 * z.samples * z.sequence**2 * model.width // (2 if causal else 1)
    moved = z.of(2 * model.width + 2 * model.kv_width)
    forward = Kernel(flops, moved, attention=True)
    return Op((forward,), (Kernel(5 * flops // 2, 2 * moved, attention=True),))


def passes(
    z: Size, width: int, *, forward: int, backward: tuple[int, ...], tensors: tuple[int, ...] = ()
) -> Op:
    """A memory-bound operator: how often it touches `width` numbers per token, by kernel."""
    unit = z.of(width)
    kernels = (Kernel(0, times * unit) for times in backward)
    return operator(z, Kernel(0, forward * unit), kernels, tensors)


def norm(z: Size) -> Op:
    """Backward: one kernel for the input, one that sums the parameters' gradients. RMS norms have
    no bias."""
    d = z.model.width
    tensors = (d,) if z.model.family == "llama" else (d, d)
    return passes(z, d, forward=2, backward=(3, 2), tensors=tensors)


def residual(z: Size) -> Op:
    """A sum of two; backward adds the gradients that come both ways."""
    return passes(z, z.model.width, forward=3, backward=(3,))


def activation(z: Size, width: int) -> Op:
    return passes(z, width, forward=2, backward=(3,))


def gather(z: Size, rows: int) -> Op:
    """Rows of a table. Backward fills a dense gradient of the whole table."""
    unit, table = z.of(z.model.width), rows * z.model.width
    return operator(z, Kernel(0, 2 * unit), [Kernel(0, table * z.number + 2 * unit)], (table,))


def add_table(z: Size) -> Op:
    """Adds one row per position; backward sums its gradient over the samples."""
    table = z.model.positions * z.model.width
    return passes(z, z.model.width, forward=3, backward=(1,), tensors=(table,))


def cross_entropy(z: Size, logits: int) -> Op:
    """The loss of so many logits in all, in fp32 whatever they come in; backward holds all of it.

    Cast up, log-softmax; then a gradient that is zero but at the targets, log-softmax's, cast down.
    """
    exact = FLOAT * logits
    casts = z.number * logits + exact if z.number < FLOAT else 0
    moved = (casts, 2 * exact, exact, 3 * exact, casts)
    return Op((), tuple(Kernel(0, count) for count in moved if count))
