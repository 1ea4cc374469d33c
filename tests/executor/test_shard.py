"""Layers, flats and shards: the pieces that a replay is made of."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from executor.device import aligned
from executor.errors import RunError, WorkloadError
from executor.flat import Spec, flat_bytes, spec_of, view, views
from executor.layers import split, ties
from executor.shard import Shard


def make_optimizer(parameters: list[nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=1e-2)


def test_layers_of_a_model() -> None:
    """A Sequential or ModuleList is a chain of its children, anything else one layer."""
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    assert split(nn.Sequential(*layers)) == layers
    assert split(nn.ModuleList(layers)) == layers
    assert split(layers[0]) == layers[:1]
    assert split(nn.Sequential(layers[0], layers[0])) == [layers[0], layers[0]]


class Backwards(nn.Sequential):
    """Runs its children from the last to the first."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self):
            x = layer(x)
        return x


def test_a_sequential_with_its_own_forward_is_one_layer() -> None:
    """Its children might run in another order than they stand."""
    model = Backwards(nn.Linear(2, 2), nn.Linear(2, 2))
    assert split(model) == [model]


def test_models_that_cannot_be_split() -> None:
    """No layers, or a parameter outside of all layers."""
    with pytest.raises(WorkloadError, match="has no layers"):
        split(nn.Sequential())
    model = nn.Sequential(nn.Linear(2, 2))
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(WorkloadError, match="parameter scale belongs to no layer"):
        split(model)


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
    flat = aligned(flat_bytes(specs))
    assert flat.numel() == 4 * 256
    for tensor, seen in zip(tensors, views(flat, specs), strict=True):
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


def test_a_shard_moves() -> None:
    """Parameters, gradients and state may lie elsewhere in every step; the numbers stay."""
    torch.manual_seed(0)
    layer, x, y = nn.Linear(4, 4), torch.rand(2, 4), torch.rand(2, 4)
    twin = nn.Linear(4, 4)
    twin.load_state_dict(layer.state_dict())
    optimizer = make_optimizer(list(twin.parameters()))
    shard = Shard([layer], make_optimizer, F.mse_loss)
    params, state = aligned(shard.param_bytes), aligned(4 * shard.param_bytes)
    shard.write_params(params)
    for _ in range(3):
        F.mse_loss(twin(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        params, state = params.clone(), state.clone()
        grads = aligned(shard.grad_bytes).fill_(7)
        shard.bind_params(params)
        shard.bind_grads(grads)
        shard.backward(shard.graph(x, dx=False, targets=y))
        shard.update(params, grads, state)
        assert torch.equal(layer.weight, twin.weight)
    assert shard.state_bytes == 2 * shard.param_bytes
    assert layer.weight.data_ptr() == params.data_ptr()


def test_a_replica_has_its_own_parameters() -> None:
    """Two shells of one shard hold different parameters at the same time."""
    shard = Shard([nn.Linear(4, 4)], make_optimizer)
    other = shard.replica()
    flats = [aligned(shard.param_bytes).zero_() for _ in range(2)]
    flats[1].fill_(1)
    shard.bind_params(flats[0])
    other.bind_params(flats[1])
    out = [aligned(256) for _ in range(2)]
    made = [
        view(o, s.forward(torch.ones(1, 4), o)) for s, o in zip((shard, other), out, strict=True)
    ]
    assert made[0].sum() == 0
    assert made[1].sum() != 0
    assert other.param_bytes == shard.param_bytes


def test_a_replica_keeps_ties() -> None:
    """A weight shared by two layers is one weight in the replica too."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    shard = Shard([first, second], make_optimizer)
    other = shard.replica()
    assert len(other.parameters) == 3
    assert other.param_bytes == shard.param_bytes == 3 * 256


def test_state_that_does_not_fit() -> None:
    """An optimizer that keeps more state than planned is told with both numbers."""
    shard = Shard([nn.Linear(4, 4)], make_optimizer, F.mse_loss)
    params, grads = aligned(shard.param_bytes), aligned(shard.grad_bytes)
    shard.write_params(params)
    shard.bind_grads(grads)
    shard.backward(shard.graph(torch.rand(1, 4), dx=False, targets=torch.rand(1, 4)))
    with pytest.raises(RunError, match="keeps 1024 bytes of state, the plan has 256"):
        shard.update(params, grads, aligned(256))


def test_a_parameter_with_a_hook() -> None:
    """What changes a gradient outside of the layer is refused, not lost."""
    layer = nn.Linear(4, 4)
    layer.bias.register_hook(lambda grad: grad * 2)
    with pytest.raises(WorkloadError, match="parameter bias of layer 0 of the shard has a hook"):
        Shard([layer], make_optimizer).replica()
