"""Models whose own code goes by values: taken apart right, refused, or stopped; never wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from executor.cutting.calling import run
from executor.cutting.chain import Chain, chain_of
from executor.cutting.flow import Flow
from executor.cutting.record import record
from executor.errors import WorkloadError
from executor.numerics.buffers import Buffers

WIDTH = 8

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("default"),  # torch.export has its own
]


class Scaled(nn.Module):
    """A layer that may be given a number or a function too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, by: Any = 1) -> Tensor:
        y: Tensor = self.linear(x)
        return by(y) if callable(by) else y * by


class Number(nn.Module):
    def forward(self, x: Tensor) -> float:
        return float(x.abs().mean())


class Table(nn.Module):
    """Hands out a buffer, as position tables do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(WIDTH))

    def forward(self) -> Tensor:
        table = self.table
        assert isinstance(table, Tensor)
        return table


class Model(nn.Module):
    """A list of layers between two others; `body` is its forward."""

    def __init__(self, body: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        self.other = nn.Linear(WIDTH, 5)
        self.blocks = nn.ModuleList(Scaled() for _ in range(4))
        self.number, self.table = Number(), Table()
        both = torch.randn(2, WIDTH)
        self.register_buffer("low", both[0])
        self.register_buffer("high", both[1])
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)

    def through(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h)
        return h


def leaves_early(model: Model, x: Tensor) -> Tensor:
    h = model.enter(x)
    for block in model.blocks:
        if h.abs().mean() > 5:
            break
        h = block(h)
    return model.leave(h)


def chooses_for_later(model: Model, x: Tensor) -> Tensor:
    h = model.blocks[0](model.enter(x))
    large = bool(h.abs().mean() > 5)
    h = model.blocks[1](h)
    h = model.blocks[2](h * 2 if large else h)
    return model.leave(model.blocks[3](torch.tanh(h)))


def reads_a_list(model: Model, x: Tensor) -> Tensor:
    h = model.blocks[0](model.enter(x))
    large = h.abs().mean((1, 2)).tolist()[0] > 5
    h = model.blocks[1](h)
    h = model.blocks[2](h * 2 if large else h)
    return model.leave(model.blocks[3](h))


def takes_another_head(model: Model, x: Tensor) -> Tensor:
    mean = float(x.mean())
    h = model.through(model.enter(x))
    return model.other(h) if mean > 5 else model.leave(h)


def gives_a_number(model: Model, x: Tensor) -> Tensor:
    most = 1 + int(x.abs().max() / 20)
    h = model.enter(x)
    for number, block in enumerate(model.blocks):
        h = block(h) if number < 2 else block(h, most)
    return model.leave(h)


@pytest.mark.parametrize(
    "body",
    [leaves_early, chooses_for_later, takes_another_head, gives_a_number],
    ids=lambda body: body.__name__,
)
def test_a_model_that_goes_another_way_for_a_batch_is_stopped(body: Any) -> None:
    """Bits are the model's where it goes the way that was seen, and an error where not."""
    model, x, chain = found(lambda: Model(body))
    assert chain.how == "modules"
    same(model, chain, [x])
    with pytest.raises(WorkloadError):
        run(chain.layers, x + 50)


def test_a_model_may_go_another_way_inside_of_one_slice() -> None:
    """All that differs is in the slice between two boundaries, which runs the model's own code."""
    model, x, chain = found(lambda: Model(reads_a_list))
    assert chain.how == "modules"
    same(model, chain, [x, x + 50])


def keeps_a_number_of_a_module(model: Model, x: Tensor) -> Tensor:
    number = model.number(x)
    return model.leave(model.through(model.enter(x))) * number


def gives_a_closure(model: Model, x: Tensor) -> Tensor:
    h, mean = model.enter(x), x.abs().mean()
    for number, block in enumerate(model.blocks):
        h = block(h) if number < 2 else block(h, lambda y: y * mean)
    return model.leave(h)


def lists_a_draw(model: Model, x: Tensor) -> Tensor:
    heads = torch.rand([1]).tolist()[0] < 0.5
    y: Tensor = model.leave(model.through(model.enter(x)))
    return y * 2 if heads else y


def draws_for_later(model: Model, x: Tensor) -> Tensor:
    kept = torch.bernoulli(torch.tensor(0.5))
    return model.leave(model.through(model.enter(x))) * kept


@pytest.mark.parametrize(
    "body",
    [keeps_a_number_of_a_module, gives_a_closure, lists_a_draw, draws_for_later],
    ids=lambda body: body.__name__,
)
def test_what_belongs_to_one_run_is_not_kept_for_all(body: Any) -> None:
    """Numbers, functions and draws of the run that was recorded are in no layer."""
    model, x, chain = found(lambda: Model(body))
    assert chain.how != "modules"
    same(model, chain, [x, x + 50, x - 50])


def notes_a_number(model: Model, x: Tensor) -> Tensor:
    model.seen = float(x.norm())
    return model.leave(model.through(model.enter(x)))


def tames_between(model: Model, x: Tensor) -> Tensor:
    h = model.enter(x)
    for block in model.blocks:
        h = block(h)
        h = h / max(1.0, float(h.detach().abs().max()))
    return model.leave(h)


def asks_for_a_table(model: Model, x: Tensor) -> Tensor:
    table = model.table()
    return model.leave(model.through(model.enter(x)) * table)


def ends_without_parameters(model: Model, x: Tensor) -> Tensor:
    h = torch.rand(WIDTH) * model.enter(x)
    y = model.through(h) + torch.rand(WIDTH) * x
    return y[:, 0, :5] - y.mean(1)[:, :5]


def has_buffers_in_one_tensor(model: Model, x: Tensor) -> Tensor:
    h = model.enter(x) * model.low + model.high
    return model.leave(model.through(h) * model.low)


@pytest.mark.parametrize(
    "body",
    [
        notes_a_number,
        tames_between,
        asks_for_a_table,
        has_buffers_in_one_tensor,
        ends_without_parameters,
    ],
    ids=lambda body: body.__name__,
)
def test_values_that_no_way_depends_on_hinder_nothing(body: Any) -> None:
    """Numbers used where they are made and buffers of any kind leave the lists as they are."""
    model, x, chain = found(lambda: Model(body))
    assert chain.how == "modules", chain.why
    same(model, chain, [x, x + 50, x - 50, x.repeat(2, 1, 1)])


class Passing(nn.Module):
    """Uses tensors between its layers that are gone when others are made, some at their address:
    outputs of modules inside of layers, and constants."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(9))) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            passing = [torch.rand(WIDTH).abs() for _ in range(100)]
            del passing
            x = block(x)
            for _ in range(9):
                torch.rand(WIDTH)
                x = x + torch.tensor([0.5] * WIDTH)
        return x


def test_tensors_at_one_address_are_not_one() -> None:
    """No output inside of a layer is used outside, and what is drawn goes nowhere but to `abs`."""
    seen = record(Passing(), torch.randn(4, WIDTH))
    layers = [call for call in seen.calls.values() if not call.parents]
    assert Flow(seen, layers, has_loss=True).leaks == [[], [], []]
    drawn = {number for op in seen.ops if op.draws for number in op.writes}
    assert len(drawn) == 3 * 109
    assert sum(bool(drawn & op.reads) for op in seen.ops) == 3 * 100


def test_parametrized_modules_are_taken_along() -> None:
    """A module that computes a weight is no list of layers, or one like any other."""

    def make() -> nn.Module:
        model = Model(lambda model, x: model.leave(model.through(model.enter(x))))
        model.enter, model.leave = weight_norm(model.enter), weight_norm(model.leave)
        return model

    model, x, chain = found(make)
    same(model, chain, [x, x + 50])


class Gapped(nn.Module):
    """A list with a layer without parameters, a parameter and a BatchNorm outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(3)
        self.blocks = nn.ModuleList([Scaled(), nn.Tanh(), Scaled()])
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.leave = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.enter(x))
        for block in self.blocks:
            h = block(h) * self.scale
        return self.leave(h)


def test_a_layer_of_several_pieces_has_the_parameters_of_all() -> None:
    """One that is used between layers is in every layer that uses it."""
    model, x, chain = found(Gapped)
    scale = dict(model.named_parameters())["scale"]
    holders = [any(p is scale for p in layer.parameters()) for layer in chain.layers]
    assert holders == [False, False, True, True, False, True]
    same(model, chain, [x])


def test_buffers_that_change_between_layers_are_known() -> None:
    """Running statistics of a module outside of the lists are kept as those of any layer."""
    _, x, chain = found(Gapped)
    buffers = Buffers(chain.layers[:1])
    with buffers.kept(snapshot=False):
        chain.layers[0](x)
    assert [slot.name.split(".")[-1] for slot in buffers.changing] == [
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]


def test_modes_reach_the_code_between_layers() -> None:
    """A layer in eval mode drops nothing, wherever in it the dropout is."""

    class Dropping(Model):
        def __init__(self) -> None:
            super().__init__(lambda model, x: model.leave(model.through(model.enter(x))))
            self.enter = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))

    model, x, chain = found(Dropping)
    model.eval()
    for layer in chain.layers:
        layer.eval()
    assert torch.equal(run(chain.layers, x), model(x))


def test_a_graph_chosen_by_the_batch_size_is_for_that_size() -> None:
    """A branch by the number of samples is not taken for another number."""

    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            return self.second(h * 2 if x.shape[0] > 3 else h)

    model, x, chain = found(Branch)
    assert (chain.how, chain.batch) == ("graph", 4)
    same(model, chain, [x])


def test_hooks_of_a_sequential_are_run() -> None:
    """A Sequential with a hook is more than its children."""

    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 5))
        model.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
        return model

    model, x, chain = found(make)
    assert chain.how != "sequential"
    same(model, chain, [x])


def found(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor, Chain]:
    torch.manual_seed(0)
    model = make().train()
    x = torch.randn(4, 3, WIDTH)
    return model, x, chain_of(model, x)


def same(model: nn.Module, chain: Chain, batches: list[Tensor]) -> None:
    """The layers give the model's outputs for these batches, bit for bit."""
    for seed, x in enumerate(batches):
        torch.manual_seed(seed)
        expected = model(x)
        torch.manual_seed(seed)
        assert torch.equal(run(chain.layers, x), expected)
