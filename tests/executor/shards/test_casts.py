"""Boundaries that several layers cast: under autocast their gradients add up as in a plain loop.

Autocast keeps what it made of a leaf and gives it to all who cast it, whose gradients then meet in
low precision. Between layers a plain loop has no leaves; a shard's must not be taken for such.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.chains import WIDTH
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from executor.devices.device import aligned
from executor.errors import WorkloadError
from executor.numerics.precision import AUTOCAST
from executor.numerics.values import hold, read_grads
from executor.shards.graphs import Graph
from executor.shards.parameters import NONE
from executor.shards.shard import Shard
from executor.workload.loss import Batch, Ending
from profiles.schema import Precision

LAYERS, ROWS, SCALE = 4, 6, 64.0

pytestmark = pytest.mark.usefixtures("one_thread")


class Attention(nn.Module):
    """Casts what it looks at twice, and what asks once more."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.q(x), self.k(seen), self.v(seen)
        y: Tensor = self.norm(x + self.out(F.scaled_dot_product_attention(q, k, v)))
        return y


class Encoder(Attention):
    """A layer that ends with its norm, as BERT's do: the next one casts an fp32 tensor thrice."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x)


class Decoder(nn.Module):
    """Looks at itself and at what an encoder gave, as T5's layers do, and hands that on."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention()

    def forward(self, value: Any) -> Any:
        x, seen = value if isinstance(value, tuple) else (value, value)
        return self.cross(self.own(x, x), seen), seen


class Head(nn.Linear):
    """One tensor again."""

    def forward(self, value: Any) -> Tensor:
        return super().forward(value[0] if isinstance(value, tuple) else value)


def encoder() -> nn.Sequential:
    return nn.Sequential(*(Encoder() for _ in range(LAYERS - 1)), Head(WIDTH, WIDTH))


def decoder() -> nn.Sequential:
    return nn.Sequential(Encoder(), *(Decoder() for _ in range(LAYERS - 2)), Head(WIDTH, WIDTH))


class Casting(nn.Module):
    """Asks for autocast itself."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layer(x)


def casting() -> nn.Sequential:
    return nn.Sequential(*map(Casting, encoder()))


def batches(count: int) -> list[Batch]:
    return [Batch(*torch.randn(2, ROWS, WIDTH)) for _ in range(count)]


def plain(model: nn.Module, precision: Precision, given: list[Batch]) -> list[Tensor | None]:
    """The gradients of an ordinary loop over microbatches."""
    model.zero_grad()
    low = AUTOCAST.get(precision)
    for x, y in given:
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            loss = F.mse_loss(model(x), y) / len(given)
        torch.autograd.backward(loss * SCALE)
    return [p.grad for p in model.parameters()]


def run_in_shards(
    model: nn.Sequential, precision: Precision, given: list[Batch], mode: str
) -> list[Tensor | None]:
    """The gradients of the same, each layer a shard."""
    shards = [
        Shard(
            [layer],
            partial(SGD, lr=0.1),
            Ending(F.mse_loss) if layer is model[-1] else None,
            precision,
            first=layer is model[0],
        )
        for layer in model
    ]
    for shard in shards:
        shard.write_params(aligned(shard.param_bytes))
    grads = [aligned(shard.grad_bytes) for shard in shards]
    for m, batch in enumerate(given):
        xs, graphs = [hold(batch.inputs)], list[Graph | None]()
        flats = [aligned(1 << 14) for _ in range(2 * LAYERS)]
        for shard in shards[:-1]:
            out, room = flats.pop(), flats.pop()
            if mode == "recompute":
                layout, graph = shard.forward(xs[-1], out)[0], None
                # as in all steps but the first, which looks for what needs gradients
                layout, _ = shard.forward(xs[-1], out, layout)
            else:
                saved = room if mode == "offload" else None
                layout, graph = shard.forward_graph(xs[-1], out, saved=saved)
                shard.move(graph, xs[-1], room)
            xs.append(layout.held(out))
            graphs.append(graph)
        last = torch.full((1,), SCALE)
        parts = float(len(given))
        graphs.append(shards[-1].graph(xs[-1], batch=batch, divisor=parts, scale=last))
        dy: dict[int, Tensor] = {}
        for k in reversed(range(LAYERS)):
            shard, dx = shards[k], aligned(1 << 14)
            graph = graphs[k] or shard.graph(xs[k])
            back, absent = dx if k else None, NONE if m else None
            done = shard.backward(graph, grads[k], dy=dy, dx=back, absent=absent)
            dy = read_grads(dx, done.dx)
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("mode", ["recompute", "saved", "offload"])
@pytest.mark.parametrize(
    ("make", "precision"),
    [
        *((make, precision) for make in (encoder, decoder) for precision in AUTOCAST),
        (casting, "fp32"),
    ],
)
def test_what_several_layers_cast(
    make: Callable[[], nn.Sequential], precision: Precision, mode: str, microbatches: int
) -> None:
    """Cut at each layer, every gradient has the bits of the plain loop."""
    torch.manual_seed(0)
    model, given = make(), batches(microbatches)
    expected = plain(model, precision, given)
    found = run_in_shards(model, precision, given, mode)
    for name, mine, theirs in zip(dict(model.named_parameters()), found, expected, strict=True):
        assert mine is not None, name
        assert theirs is not None, name
        assert torch.equal(mine, theirs), name


@pytest.mark.parametrize("precision", AUTOCAST)
def test_the_input_is_packed_where_it_lies(precision: Precision) -> None:
    """A norm's graph takes room for its two small results only: its input is found by address."""
    shard = Shard([nn.LayerNorm(WIDTH)], partial(SGD, lr=0.1), None, precision)
    shard.write_params(aligned(shard.param_bytes))
    x, out = hold(torch.randn(ROWS, WIDTH).requires_grad_()), aligned(1 << 12)
    _, graph = shard.forward_graph(x, out, saved=aligned(1 << 12))
    assert graph.packing is not None
    assert graph.packing.bytes == 512


@pytest.mark.parametrize("precision", ["fp32", *AUTOCAST])
def test_an_input_that_is_changed_in_place(precision: Precision) -> None:
    """The layer is named, with or without a graph."""
    shard = Shard([nn.ReLU(inplace=True)], partial(SGD, lr=0.1), None, precision)
    shard.write_params(aligned(0))
    x, out = hold(torch.randn(ROWS, WIDTH).requires_grad_()), aligned(1 << 12)
    for forward in (
        lambda: shard.forward(x, out),
        lambda: shard.forward(x, out, x.layout),
        lambda: shard.graph(x),
        lambda: shard.forward_graph(x, out),
    ):
        with pytest.raises(WorkloadError, match="layer ReLU changes its input in place"):
            forward()
