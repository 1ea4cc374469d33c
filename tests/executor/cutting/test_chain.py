"""Layers found in models as people write them: each way, bit for bit, whatever the batch size."""

import copy
from collections.abc import Callable
from functools import partial, wraps
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.architectures import WIDTH, architecture, series
from support.quick import ROOM, built, measured, quickly
from support.same import assert_same
from torch import Tensor, nn
from torch.nn import functional as F

from executor import run as replay
from executor.cutting import chain as cutting
from executor.cutting.calling import first, run
from executor.cutting.chain import Chain, again, chain_of, listed, name_of
from executor.cutting.graph import layers as graph
from executor.cutting.graph.segment import Line, cuts
from executor.errors import MismatchError, RunError, WorkloadError
from executor.shards import host_room
from executor.shards.tied import ties
from executor.workload.batches import staging_bytes
from executor.workload.loss import loss_in
from executor.workload.task import Task, build
from plans.schema import Plan
from profiles.schema import Cut

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("default"),  # transformers and torch.export have their own
]


# Planned and trained they all are in tests/whole.
SOME = ("gpt2", "bert", "t5", "mixtral", "convnext", "unet", "lora", "mlp-frozen")
GRAPH = ("gpt2", "resnet18", "lstm", "mlp-frozen")


def inputs_of(task: Task, step: int = 0) -> Any:
    return task.data(step)[0] if task.loss else task.data(step)


def found(task: Task) -> tuple[nn.Module, Chain]:
    model, _ = build(task)
    return model, chain_of(model, inputs_of(task), task.loss is not None)


def trained(task: Task, forward: Callable[[Any], Any], model: nn.Module) -> list[float]:
    """The losses of an ordinary loop around `forward`, in microbatches of 1 and of all others."""
    optimizer = task.optimizer(list(model.parameters()))
    torch.manual_seed(3)
    losses = []
    for step in range(task.steps):
        batch = task.data(step)
        inputs, targets = batch if task.loss else (batch, None)
        for part in (slice(0, 2), slice(2, None)):
            output = forward(first_rows(inputs, part))
            loss = loss_in(output) if task.loss is None else task.loss(output, targets[part])
            (loss / 2).backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def first_rows(inputs: Any, part: slice) -> Any:
    if isinstance(inputs, dict):
        return {name: value[part] for name, value in inputs.items()}
    return inputs[part]


def same_training(task: Task, *cuts: tuple[nn.Module, list[nn.Module]]) -> None:
    """Training each model's layers gives what training the model gives, to the last bit."""
    plain, _ = build(task)
    expected = trained(task, lambda x: plain(**x) if isinstance(x, dict) else plain(x), plain)
    for model, layers in cuts:
        assert trained(task, partial(run, layers), model) == expected
        for name, value in plain.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name


def trains_as_whole(task: Task, how: str) -> Chain:
    """The model is cut in this way, and once more by the record of that, written and read: with one
    forward of few samples at most, and none backward. Both have the plain bits in training."""
    model, chain = found(task)
    assert chain.how == how, chain.why
    cut = msgspec.json.decode(msgspec.json.encode(chain.cut), type=Cut)
    once, _ = build(task)
    plain, rows = type(once).forward, []

    @wraps(plain)
    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is once:
            rows.append(len(next(iter((*args, *kwargs.values())))))
        return plain(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(once), "forward", counted)
        for function in ("grad", "backward"):
            patch.setattr(torch.autograd, function, None)
        layers = again(once, inputs_of(task), cut, task.loss is not None, "fp32")
    if how != "graph":  # torch.export runs on tensors without values
        assert rows == ([cut.samples] if how == "modules" else [])
    assert cut.samples <= 4
    assert list(map(name_of, layers)) == list(map(name_of, chain.layers))
    same_training(task, (model, chain.layers), (once, layers))
    return chain


@pytest.mark.parametrize("name", SOME)
def test_an_architecture_is_cut_and_trains_as_whole(name: str) -> None:
    """Its lists of modules are found, and two steps through the layers have the plain bits."""
    chain = trains_as_whole(architecture(name, 2), "modules")
    assert len(chain.layers) >= 4
    assert chain.batch is None


@pytest.mark.parametrize("name", GRAPH)
def test_the_graph_trains_as_the_model_does(name: str) -> None:
    """Cut in its graph of operations, a model has the plain bits for every microbatch size."""
    task = architecture(name, 2)
    model, _ = build(task)
    layers, any_size = graph.cut(model, first(inputs_of(task), 2), task.loss is not None)
    assert any_size
    assert 4 <= len(layers) <= 64
    same_training(task, (model, layers))


class Tamed(nn.Module):
    """Computes some of its values without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.no_grad():
            most = h.abs().amax() + 1
        return self.second(torch.tanh(h / most)[:, 0])


def test_a_graph_in_the_graph_is_taken_along() -> None:
    """The export has one where gradients are off; a layer with it has the plain bits."""
    task = odd(Tamed)
    model, _ = build(task)
    layers, _ = graph.cut(model, first(inputs_of(task), 2), True)
    assert len(layers) == 2
    same_training(task, (model, layers))


@pytest.mark.parametrize("name", ["qwen3-tied", "t5", "mlp-frozen", "unet"])
def test_layers_hold_the_models_own_parameters(name: str) -> None:
    """Every parameter that is used is in a layer, a tied one in each that uses it."""
    task = architecture(name)
    model, chain = found(task)
    own = {id(p): path for path, p in model.named_parameters()}
    held = {own[id(p)] for layer in chain.layers for p in layer.parameters()}
    assert set(own.values()) - held == (
        {"unused.weight", "unused.bias"} if name == "mlp-frozen" else set()
    )
    tied = {"qwen3-tied": ((0, len(chain.layers) - 1),), "t5": ((0, 3, 6),)}
    assert ties(chain.layers) == tied.get(name, ())
    buffers = {id(b) for b in model.buffers()}
    assert {id(b) for layer in chain.layers for b in layer.buffers()} <= buffers


def test_finding_layers_leaves_no_trace() -> None:
    """Buffers, gradients and the random state are afterwards as before."""
    task = architecture("resnet18")
    model, _ = build(task)
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    chain_of(model, inputs_of(task))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Blocks(nn.Module):
    """A list of layers between two others; `between` says what happens in the loop."""

    def __init__(self, between: Callable[["Blocks", int, Any, Tensor], Any]) -> None:
        super().__init__()
        self.enter = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout, self.leave = nn.Dropout(0.2), nn.Linear(WIDTH, 5)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        kept: Any = []
        h = self.enter(x)
        for number, block in enumerate(self.blocks):
            h = self.between(self, number, kept, h)
            h = block(h)
        total = sum((k.sum((1, 2)) for k in kept), start=torch.zeros(()))
        return self.leave(h[:, 0]) + total[..., None] if kept else self.leave(h[:, 0])


def adds_in_place(model: Blocks, number: int, kept: Any, h: Tensor) -> Tensor:
    h += 1
    return h


def keeps_all(model: Blocks, number: int, kept: Any, h: Tensor) -> Tensor:
    kept.append(h)
    return h


def sums_up(model: Blocks, number: int, kept: Any, h: Tensor) -> Tensor:
    kept.append(h.square())
    return model.dropout(h)


BETWEEN: dict[str, Callable[[Blocks, int, Any, Tensor], Any]] = {
    "drops": lambda model, number, kept, h: F.dropout(h, 0.2),
    "draws": lambda model, number, kept, h: h if torch.rand([]) < 2 else -h,
    "adds in place": adds_in_place,
    "uses a parameter": lambda model, number, kept, h: h * model.scale,
    "keeps all": keeps_all,
    "sums up": sums_up,
    "drops by module": lambda model, number, kept, h: model.dropout(h) if number % 2 else h,
    "views": lambda model, number, kept, h: h.flip(1)[:, :, : h.shape[2]],
}


def odd(model: Callable[[], nn.Module]) -> Task:
    task = architecture("lstm")
    return Task("odd", model, series, F.cross_entropy, task.optimizer, 2, seed=4)


@pytest.mark.parametrize("between", BETWEEN)
def test_what_happens_between_layers_is_kept(between: str) -> None:
    """Draws, parameters, skips and sums between the layers of a list are part of the chain."""
    chain = trains_as_whole(odd(partial(Blocks, BETWEEN[between])), "modules")
    assert len(chain.layers) >= 4


class Aside(nn.Module):
    """Leaves something in an attribute, which the model reads at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.aside: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.aside = x.square().mean((1, 2))
        return self.linear(x)


class Asides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Aside() for _ in range(3))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        extra = sum(block.aside for block in self.blocks)
        return self.head(x[:, 0]) + extra[:, None]


class Branches(nn.Module):
    """Goes one way or another by the values of its input; leaves things in attributes too."""

    def __init__(self) -> None:
        super().__init__()
        self.asides = Asides()

    def forward(self, x: Tensor) -> Tensor:
        return self.asides(x if x.sum() > 0 else -x)


def test_values_in_attributes_take_the_graph() -> None:
    """A tensor in a layer's attribute does not go through its output; the graph has it."""
    chain = trains_as_whole(odd(Asides), "graph")
    assert any(reason.startswith("modules: ") for reason in chain.why)


def test_a_model_that_nothing_can_cut_is_one_layer() -> None:
    """No way found: the whole model is the layer, and it is said why."""
    chain = trains_as_whole(odd(Branches), "whole")
    assert list(map(type, chain.layers)) == [Branches]
    assert [reason.split(":")[0] for reason in chain.why] == ["sequential", "modules", "graph"]


def test_a_sequential_is_its_children_whatever_the_inputs_are_called() -> None:
    """A dict or tuple of one input goes to the first child."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    x = torch.randn(2, 3)
    for inputs in (x, (x,), {"input": x}):
        chain = chain_of(model, inputs)
        assert chain.how == "sequential"
        assert torch.equal(run(chain.layers, inputs), model(x))
    assert chain_of(model, x).layers == list(model)
    with pytest.raises(WorkloadError, match="no layers"):
        chain_of(nn.Sequential(), x)


class Backwards(nn.Sequential):
    """Runs its children from the last to the first."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self):
            x = layer(x)
        return x


def test_only_a_plain_list_is_a_chain_of_its_children() -> None:
    """A Sequential or ModuleList, also one with a module twice; not one with its own forward."""
    x, layers = torch.randn(2, 3), [nn.Linear(3, 3), nn.Tanh()]
    assert listed(nn.Sequential(*layers), x) == layers
    assert listed(nn.ModuleList(layers), x) == layers
    assert listed(nn.Sequential(layers[0], layers[0]), x) == [layers[0], layers[0]]
    assert listed(Backwards(*layers), x) is None
    assert listed(layers[0], x) is None


def test_a_structure_that_changes_is_an_error() -> None:
    """A model that calls its layers otherwise than before is not trained wrongly."""

    class Skipping(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            h = self.enter(x)
            for block in self.blocks if x[0, 0, 0] < 100 else self.blocks[:2]:
                h = block(torch.tanh(h))
            return self.leave(h[:, 0])

    model = Skipping(BETWEEN["drops"]).train()
    x = torch.zeros(4, 8, WIDTH)
    chain = chain_of(model, x)
    assert chain.how == "modules"
    with pytest.raises(WorkloadError, match="goes by a value that is False and was True"):
        run(chain.layers, torch.full_like(x, 200.0))


@pytest.mark.parametrize(("name", "precision"), [("t5", "bf16"), ("llama", "fp16-autocast")])
def test_low_precision_models_are_cut(name: str, precision: Any) -> None:
    """They are taken apart as they will compute, and are afterwards as they were."""
    task = architecture(name)
    model, _ = build(task)
    before = copy.deepcopy(model.state_dict())
    chain = chain_of(model, inputs_of(task), False, precision)
    assert chain.how == "modules", chain.why
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key])


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2), st.integers(0, 9)), min_size=1))
def test_cuts_leave_parameters_on_both_sides(rows: list[tuple[int, int, int]]) -> None:
    """Cuts ascend, lie where they may, and every piece is the first to use some parameter."""
    weights, parameters, widths = zip(*rows, strict=True)
    live = [None, *(w or None for w in widths[1:]), None]
    places = cuts(Line(weights, parameters, live), 8)
    assert places == sorted(set(places))
    assert all(live[place] is not None for place in places)
    edges = [0, *places, len(rows)]
    assert len(edges) <= 9
    if places:
        assert all(sum(parameters[a:b]) for a, b in pairwise(edges))


@pytest.fixture(scope="module")
def made() -> tuple[Task, Plan]:
    """A task whose model lists blocks between other modules, and its plan."""
    task = architecture("lstm")
    with quickly():
        return task, built(measured(task, 2), ROOM)


def test_a_run_proves_no_layers(made: tuple[Task, Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes backward through shards alone, never through the whole model, and has its bits."""
    task, plan = made
    with monkeypatch.context() as patch:
        patch.setattr(cutting, "trace", None)  # by which layers are proven
        result = replay(plan, [task])
    assert_same(plan, [task], result)


@pytest.mark.parametrize("versions", [None, "torch 0.1"])
def test_what_was_cut_by_others_is_proven_again(
    made: tuple[Task, Plan], versions: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that does not say how, or says so of other packages, is cut as by a profile."""
    task, plan = made
    (own,) = plan.tasks
    assert own.cut is not None
    cut = replace(own.cut, versions=versions) if versions else None
    proven: list[object] = []
    found_by = cutting.chain_of

    def counted(*given: Any, **how: Any) -> Chain:
        proven.append(given)
        return found_by(*given, **how)

    monkeypatch.setattr(cutting, "chain_of", counted)
    old = replace(plan, tasks=(replace(own, cut=cut),))
    assert_same(old, [task], replay(old, [task]))
    assert len(proven) == 1


def test_another_model_is_refused(made: tuple[Task, Plan]) -> None:
    """Where the modules that were layers are no longer there, the error says what to do."""
    task, plan = made
    (own,) = plan.tasks
    assert own.cut is not None
    gone = replace(own, cut=replace(own.cut, paths=("no.such.module",)))
    with pytest.raises(MismatchError, match=r"as when it was profiled.*profile and build again"):
        replay(replace(plan, tasks=(gone,)), [task])


@pytest.mark.parametrize("there", [False, True])
def test_room_for_the_model_is_counted(
    made: tuple[Task, Plan], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is yet to be built takes as much again as its parameters in the store."""
    task, plan = made
    assert callable(task.model)
    task = Task(**vars(task) | {"model": task.model()}) if there else task
    parameters = sum(shard.param_bytes for shard in plan.tasks[0].shards)
    staging = staging_bytes(plan.tasks[0])
    needed = plan.host.bytes + staging + (0 if there else parameters)
    monkeypatch.setattr(host_room, "free_host_bytes", lambda: needed - 1)
    told = f"need {needed} bytes, the machine has {needed - 1} free: task parameters .*host-memory"
    with pytest.raises(RunError, match=told):
        replay(plan, [task])
    monkeypatch.setattr(host_room, "free_host_bytes", lambda: needed)
    replay(plan, [task])
