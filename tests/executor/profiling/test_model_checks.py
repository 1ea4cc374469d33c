"""Layers that do more than compute from what they are given are refused before measuring."""

from collections.abc import Callable

import pytest
import torch
from support import lab
from support.lab import WIDTH, linear, rows, task
from torch import Tensor, nn
from torch.nn import functional as F

from executor.cutting.chain import chain_of
from executor.errors import WorkloadError
from executor.profiling.layer_checks import batch
from executor.profiling.model_checks import check_model
from executor.workload.task import Task, build


def tokens(step: int) -> tuple[Tensor, Tensor]:
    return torch.arange(4) + step, rows(step)[1]


class Counting(nn.Module):
    """Computes something else once it was run often."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = linear(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = self.linear(x)
        return y if self.calls < 100 else 2 * y


class Flipping(Counting):
    """Keeps what it saw, and is no counter."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls = 3 - 2 * self.calls
        return self.linear(x)


class Seeding(Counting):
    """Begins anew with random numbers of its own, as the layers of a Reformer do."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls = torch.seed()
        torch.manual_seed(self.calls)
        return F.dropout(self.linear(x))


class Late(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(WIDTH))
        return x + 1


class Clamped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()

    def forward(self, x: Tensor) -> Tensor:
        self.linear.weight.data.clamp_(min=0)
        return self.linear(x)


class Viewing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = linear()
        self.shown = self.linear.weight.detach()[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.shown  # type: ignore[no-any-return]


class Applied(nn.Module):
    """Calls a function that knows more than it shows, or what is in a list."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.hidden = [function]

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden[0](x)


class Logging(nn.Module):
    """Keeps what it saw last, for others to look at."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.linear, self.teacher, self.ready, self.last = linear(), [teacher], False, 0.0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = F.dropout(self.linear(x), 0.5) + self.teacher[0](x)
        self.ready, self.last = True, y.mean().item()
        self.none = float("nan")
        return y


class Inner(nn.Module):
    """A model that is no nn.Sequential."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = linear(), middle, linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def hidden() -> nn.Module:
    embedding = linear()
    return nn.Sequential(embedding, nn.Tanh(), Applied(embedding))


def enclosed() -> nn.Module:
    embedding = linear()
    return nn.Sequential(embedding, nn.Tanh(), Applied(lambda x: F.linear(x, embedding.weight)))


def twice_there() -> nn.Module:
    one, other = linear(), linear()
    other.weight = nn.Parameter(one.weight.data)
    return nn.Sequential(one, nn.Tanh(), other)


def checked(task: Task) -> None:
    """As a profile begins."""
    model, _ = build(task)
    found = batch(task)
    check_model(task, model, found.inputs)
    lab.checked(task, chain_of(model, found.inputs, True, "fp32").layers)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "count": (
        lambda: nn.Sequential(linear(), Counting()),
        r"changes the number Counting.calls each time, 1 aft",
    ),
    "count inside": (
        lambda: Inner(Counting()),
        r"changes the number Counting.calls each time, 1 aft",
    ),
    "number": (
        lambda: nn.Sequential(linear(), Flipping()),
        r"changes the number Flipping.calls each time",
    ),
    "seed": (
        lambda: nn.Sequential(linear(), Seeding()),
        "seeds torch's random numbers in its forward",
    ),
    "seed inside": (lambda: Inner(Seeding()), "seeds torch's random numbers in its forward"),
    "buffer": (lambda: nn.Sequential(Late(), linear()), "makes buffer seen in its forward"),
    "buffer inside": (lambda: Inner(Late()), "makes buffer middle.seen in its forward"),
    "change": (lambda: nn.Sequential(Clamped(), linear()), r"changes its parameter linear.weight"),
    "change inside": (lambda: Inner(Clamped()), r"changes its parameter middle.linear.weight"),
    "sparse": (lambda: nn.Sequential(Applied(Tensor.to_sparse), linear()), "not plain strided"),
    "meta": (lambda: nn.Sequential(Applied(lambda x: x.to("meta")), linear()), "tensor on meta"),
    "view": (lambda: nn.Sequential(linear(), Viewing()), r"its shown shows the memory of param"),
    "list": (hidden, r"layer 2 \(Applied\): holds parameter weight of layer 0 out of sight"),
    "function": (enclosed, r"layer 2 \(Applied\): uses parameter weight of layer 0 from outside"),
    "two in one": (twice_there, "weight of layer 0 and parameter weight of layer 2 are two in"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_habit_that_would_change_bits_is_refused(name: str) -> None:
    """Whether a layer has it or a layer inside of a model."""
    make, text = REFUSED[name]
    with pytest.raises(WorkloadError, match=text):
        checked(task(make))


def test_embeddings_that_round_otherwise_are_refused() -> None:
    """Sparse gradients, and rows that are renormed where they lie."""
    for options, text in (({"sparse": True}, "use sparse=False"), ({"max_norm": 0.1}, "max_norm")):
        with pytest.raises(WorkloadError, match=text):
            checked(task(lambda o=options: nn.Sequential(nn.Embedding(9, WIDTH, **o)), tokens))


def test_a_loss_that_knows_the_model_is_refused() -> None:
    """A penalty of its parameters would be one of those in the host store."""
    model = nn.Sequential(linear(), linear())

    def penalized(y: Tensor, t: Tensor) -> Tensor:
        return F.mse_loss(y, t) + model[1].weight.square().sum()

    with pytest.raises(WorkloadError, match="loss: uses parameter weight of layer 1"):
        checked(task(lambda: model, loss=penalized))


def test_layers_may_note_what_they_saw() -> None:
    """And hold a frozen module of nobody's out of sight."""
    checked(task(lambda: nn.Sequential(linear(), Logging(linear().requires_grad_(False)))))
    checked(task(lambda: Inner(Logging(linear().requires_grad_(False)))))


class Recurrent(nn.Module):
    """No nn.Sequential, with kernels that compute other bits where gradients are off."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.cells, self.last = linear(), nn.LSTM(WIDTH, WIDTH, 2), linear()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(self.first(x)[None])[0][0])


def test_recurrent_layers_in_a_graph_of_operations_are_run_with_gradients() -> None:
    """As those of an nn.Sequential are."""
    model = Recurrent()
    found = chain_of(model, rows(0)[0], True, "fp32")
    assert found.how == "graph"
    checked(task(Recurrent))
