"""Offload bytes of a profile: enough for whatever a shard of these layers packs."""

from itertools import combinations

import pytest
import torch
from support.lab import LAB
from support.toys import WIDTH, batches, toy
from torch import Tensor, nn

from executor.devices.device import aligned
from executor.numerics.values import hold
from executor.profiling.bench import Bench, Case
from executor.profiling.layer import layer_cost
from executor.shards.shard import Shard

pytestmark = pytest.mark.usefixtures("warm")


CHAIN = (
    nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.2)),
    nn.LayerNorm(32),
    nn.Sequential(nn.Linear(32, 32), nn.ReLU(inplace=True)),
    nn.Flatten(),
    nn.Tanh(),
)


def test_layers_together_pack_no_more_than_each_for_itself() -> None:
    """Offload bytes have room for what is packed, however layers are joined to shards."""
    task, xs = toy("toy", *CHAIN), [batches(0)[0]]
    each = []
    for k, layer in enumerate(CHAIN):
        case = Case(task, layer, xs[-1], None, k == 0, len(xs[-1]))
        each.append(layer_cost(case, LAB).offload_bytes or 0)
        xs.append(Bench(case, LAB.device).made)
    assert each[3] == 0  # a view of its input
    for first, end in combinations(range(len(CHAIN) + 1), 2):
        shard = Shard(CHAIN[first:end], task.optimizer)
        shard.write_params(aligned(shard.param_bytes))
        room, out = aligned(sum(each[first:end])), aligned(1 << 12)
        _, graph = shard.forward_graph(hold(xs[first]), out, saved=room)
        assert graph.packing is not None
        assert graph.packing.bytes <= room.numel()


def test_a_packed_graph_that_is_timed_gives_the_same_gradients() -> None:
    """The measured backward ends as the one that recomputes does."""
    task, layer = toy("toy", *CHAIN), CHAIN[0]
    bench = Bench(Case(task, layer, batches(0)[0], None, False, len(batches(0)[0])), LAB.device)
    bench.grads.zero_()  # what is between gradients stays as it is
    bench.recompute_backward()
    grads = bench.grads.clone()
    bench.grads.zero_()
    order: list[str] = []
    bench.pack_backward(aligned(bench.packed_bytes() or 0), lambda: order.append("packed"))
    assert order == ["packed"]
    assert grads.any()
    assert torch.equal(bench.grads, grads)


class SparseLayer(nn.Module):
    """Keeps a sparse matrix for its backward."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(torch.eye(len(x)).to_sparse(), x)


def test_what_cannot_be_packed_has_no_offload_bytes() -> None:
    """A layer that keeps something sparse is measured, and not offered for offloading."""
    task, layer = toy("toy", SparseLayer()), SparseLayer()
    cost = layer_cost(Case(task, layer, torch.rand(4, 4, requires_grad=True), None, False, 4), LAB)
    assert cost.offload_bytes is None
