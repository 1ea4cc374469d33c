"""Layers, flats and shards: the pieces that a replay is made of."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Adagrad, AdamW

from executor.devices.device import aligned
from executor.errors import RunError, WorkloadError
from executor.numerics.flat import Spec, Views, spec_of, view
from executor.numerics.meter import MemoryMeter
from executor.numerics.values import hold
from executor.optim.recipe import Factory
from executor.shards.shard import Shard
from executor.shards.tied import ties
from executor.workload.loss import Batch, Ending


def make_optimizer(parameters: list[nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=1e-2)


def test_ties_join_groups() -> None:
    """Layers that share parameters through others are one group."""
    a, b, c, d = (nn.Linear(2, 2) for _ in range(4))
    b.weight, c.weight, c.bias = a.weight, nn.Parameter(torch.ones(2, 2)), b.bias
    assert ties([a, d, b, c]) == ((0, 2, 3),)
    assert ties([a, d]) == ()


def test_views_are_aligned_and_keep_strides() -> None:
    """Each view begins at a multiple of 256 bytes, in the strides of the tensor it stands for."""
    tensors = [torch.rand(3), torch.rand(4, 5).t(), torch.rand(2, 9)[:, ::3], torch.tensor(1)]
    specs = [spec_of(t) for t in tensors]
    views = Views(specs)
    assert views.bytes == 4 * 256
    for tensor, seen in zip(tensors, views.at(aligned(views.bytes)), strict=True):
        assert seen.data_ptr() % 256 == 0
        assert torch.equal(seen.copy_(tensor), tensor)
    assert specs[1].stride == (1, 5)
    assert specs[2].stride == (3, 1)


def test_a_view_that_does_not_fit() -> None:
    """A tensor larger than its buffer is told with both numbers."""
    with pytest.raises(ValueError, match="needs 12 bytes, its buffer has 8"):
        view(aligned(8), Spec(torch.float32, (3,), (1,)))


def test_a_view_has_a_version_of_its_own() -> None:
    """Writing elsewhere in the flat must not look to autograd like a change of this tensor."""
    flat = aligned(512)
    seen = view(flat, Spec(torch.float32, (3,), (1,)))
    flat[256:].zero_()
    assert seen._version == 0


def test_a_replica_keeps_ties() -> None:
    """A weight shared by two layers is one weight in the replica too."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    shard = Shard([first, second], make_optimizer)
    other = shard.replica()
    assert len(other.parameters.all) == 3
    assert other.param_bytes == shard.param_bytes == 3 * 256


def test_state_that_does_not_fit() -> None:
    """An optimizer that keeps more state than planned is told with both numbers."""
    shard = Shard([nn.Linear(4, 4)], make_optimizer, Ending(F.mse_loss))
    params, grads = aligned(shard.param_bytes), aligned(shard.grad_bytes)
    shard.write_params(params)
    x, y = torch.rand(2, 1, 4)
    shard.backward(shard.graph(hold(x), batch=Batch(x, y)), grads)
    with pytest.raises(RunError, match="keeps 1024 bytes of state, the plan has 256"):
        shard.update(params, grads, aligned(256))


def test_a_parameter_with_a_hook() -> None:
    """A hook that changes a gradient outside of the layer is refused, not lost."""
    layer = nn.Linear(4, 4)
    layer.bias.register_hook(lambda grad: grad * 2)
    with pytest.raises(WorkloadError, match=r"parameter 0\.bias of the shard's layers has a hook"):
        Shard([layer], make_optimizer).replica()


def test_a_layer_that_cannot_be_copied() -> None:
    """It is refused with the reason."""
    layer = nn.ReLU()
    layer.endless = (number for number in range(9))  # type: ignore[assignment]
    with pytest.raises(WorkloadError, match="cannot be copied: TypeError: cannot pickle 'gen"):
        Shard([layer], make_optimizer).replica()


class Counting(AdamW):
    """Counts its steps in a group, as torch's own optimizers never do."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.param_groups[0]["steps"] = self.param_groups[0].get("steps", 0) + 1
        super().step(closure)


@pytest.mark.parametrize(
    ("factory", "piecewise", "most"),
    [
        (partial(AdamW, fused=True), True, 2 * 64 * 64 * 4),  # the state of one weight
        (partial(Counting, fused=True), False, 3 * 2 * 64 * 64 * 4),  # of all
        (partial(Adagrad, fused=True), False, 3 * 64 * 64 * 4),  # of all, made beforehand
    ],
)
def test_new_state_passes_through_little_memory(
    factory: Factory, piecewise: bool, most: int
) -> None:
    """The first step of torch's own optimizers takes one parameter's state at a time."""
    layers = [nn.Linear(64, 64, bias=False) for _ in range(3)]
    shard = Shard(layers, factory, Ending(F.mse_loss))
    params, grads, state = (aligned(n * shard.param_bytes) for n in (1, 1, 2))
    shard.write_params(params)
    grads.fill_(1)
    with MemoryMeter() as meter:
        shard.update(params, grads, state)
    assert most <= meter.peak_bytes < most + 1024
    assert shard.optimizer.piecewise == piecewise
    assert shard.optimizer.optimizer.param_groups[0].get("steps", 1) == 1


def test_sparse_gradients_become_dense() -> None:
    """An embedding with sparse gradients fills its flat like any other."""
    layer = nn.Embedding(6, 4, sparse=True)
    shard = Shard([layer], make_optimizer)
    shard.write_params(aligned(shard.param_bytes))
    flat = aligned(shard.grad_bytes).fill_(255)
    graph = shard.graph(hold(torch.tensor([1, 1, 5])))
    shard.backward(graph, flat, dy={0: torch.ones(3, 4)})
    assert layer.weight.grad.sum(1).tolist() == [0, 8, 0, 0, 0, 4]
    assert layer.weight.grad.data_ptr() == flat.data_ptr()
