"""Layers, flats and shards: the pieces that a replay is made of."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adagrad, AdamW

from executor.devices.device import aligned
from executor.errors import RunError, WorkloadError
from executor.numerics.flat import Spec, Views, spec_of, view
from executor.numerics.meter import MemoryMeter
from executor.numerics.values import hold
from executor.optim.recipe import Factory
from executor.shards.parameters import NONE
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


def test_a_shard_moves() -> None:
    """Parameters, gradients and state may lie elsewhere in every step; the numbers stay."""
    torch.manual_seed(0)
    layer, x, y = nn.Linear(4, 4), torch.rand(2, 4), torch.rand(2, 4)
    twin = nn.Linear(4, 4)
    twin.load_state_dict(layer.state_dict())
    optimizer = make_optimizer(list(twin.parameters()))
    shard = Shard([layer], make_optimizer, Ending(F.mse_loss))
    params, state = aligned(shard.param_bytes), aligned(4 * shard.param_bytes)
    shard.write_params(params)
    for _ in range(3):
        F.mse_loss(twin(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        params, state = params.clone(), state.clone()
        grads = aligned(shard.grad_bytes).fill_(7)
        shard.parameters.bind(params)
        shard.backward(shard.graph(hold(x), batch=Batch(x, y)), grads)
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
    shard.parameters.bind(flats[0])
    other.parameters.bind(flats[1])
    out = [aligned(256) for _ in range(2)]
    made = [
        s.forward(hold(torch.ones(1, 4)), o)[0].read(o)[0]
        for s, o in zip((shard, other), out, strict=True)
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


def test_a_shard_without_parameters_goes_on() -> None:
    """A checkpoint has nothing for it, and no optimizer is made."""
    shard = Shard([nn.ReLU()], make_optimizer)
    shard.restore({}, {}, aligned(0))
    assert shard.optimizer is None


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
    assert shard.optimizer is not None
    assert shard.optimizer.piecewise == piecewise
    assert shard.optimizer.optimizer.param_groups[0].get("steps", 1) == 1


def test_gradients_end_where_they_are_bound() -> None:
    """Overwritten or added to, in whatever flat: each microbatch goes where the shard points."""
    layer, loss = nn.Linear(4, 4), F.mse_loss
    shard = Shard([layer], make_optimizer, Ending(loss))
    shard.write_params(aligned(shard.param_bytes))
    x, y = torch.rand(3, 2, 4), torch.rand(3, 2, 4)
    flats = [aligned(shard.grad_bytes).fill_(255) for _ in range(2)]
    for m, (flat, add) in enumerate([(0, False), (1, False), (0, True)]):
        graph = shard.graph(hold(x[m]), batch=Batch(x[m], y[m]))
        shard.backward(graph, flats[flat], absent=NONE if add else None)
    twin = nn.Linear(4, 4)
    twin.load_state_dict(layer.state_dict())
    for flat, members in enumerate([(0, 2), (1,)]):
        twin.zero_grad()
        for m in members:
            torch.autograd.backward(loss(twin(x[m]), y[m]))
        shard.parameters.bind_grads(flats[flat])
        assert all(
            torch.equal(mine.grad, theirs.grad)  # type: ignore[arg-type]
            for mine, theirs in zip(layer.parameters(), twin.parameters(), strict=True)
        )


class Fading(nn.Linear):
    """Uses its bias the second time only."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return super().forward(x) if self.seen == 2 else x @ self.weight


def test_a_gradient_may_begin_with_a_later_microbatch() -> None:
    """A parameter that only the second of three microbatches uses has that one's gradient."""
    shard = Shard([Fading(4, 4)], make_optimizer, Ending(F.mse_loss))
    shard.write_params(aligned(shard.param_bytes))
    grads = aligned(shard.grad_bytes).fill_(255)
    x, y = torch.rand(2, 4), torch.rand(2, 4)
    absent = None
    for expected in ({1}, set(), set()):
        done = shard.backward(shard.graph(hold(x), batch=Batch(x, y)), grads, absent=absent)
        absent = done.absent
        assert absent == expected


def test_sparse_gradients_become_dense() -> None:
    """An embedding with sparse gradients fills its flat like any other."""
    layer = nn.Embedding(6, 4, sparse=True)
    shard = Shard([layer], make_optimizer)
    shard.write_params(aligned(shard.param_bytes))
    flat = aligned(shard.grad_bytes).fill_(255)
    graph = shard.graph(hold(torch.tensor([1, 1, 5])))
    shard.backward(graph, flat, dy={0: torch.ones(3, 4)})
    assert layer.weight.grad is not None
    assert layer.weight.grad.sum(1).tolist() == [0, 8, 0, 0, 0, 4]
    assert layer.weight.grad.data_ptr() == flat.data_ptr()
