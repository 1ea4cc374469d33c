"""The profiler: sound records, exact bytes, one sentence for what cannot be cut."""

import gc
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from support.lab import LAB, rows, task
from support.toys import BATCH, WIDTH, batches, toy
from torch import Tensor, nn
from torch.optim import AdamW

from executor.cli import main
from executor.errors import WorkloadError
from executor.numerics.rng import DrawError
from executor.profiling import alike, profiler
from executor.profiling.bench import Bench, Case
from executor.profiling.layer import Lab, layer_cost, layer_state, no_garbage, timed
from executor.profiling.layer_checks import batch
from executor.profiling.links import fit
from executor.profiling.profiler import Options, _lab, profile
from executor.workload.loss import Batch
from executor.workload.task import Task, build
from planner.shards import Links, copy_us
from profiles import Profile, load, loads, violations
from profiles.codec import align, pretty
from profiles.schema import Device, Emulation, LayerCost, Rate
from profiles.units import microbatch_sizes

pytestmark = pytest.mark.usefixtures("quick", "warm")


TOYS = str(Path(__file__).parents[2] / "support" / "toys.py")
OPTIONS = Options(
    device_bytes=1 << 20,
    emulation=Emulation(10**9, 10**9, 20, p2p_bytes_per_s=10**8),
    devices=2,
    samples=2,
    host_bytes=1 << 30,
)


@pytest.fixture(scope="module")
def mlp() -> Profile:
    return profile(f"{TOYS}:mlp", OPTIONS)


def test_profile_is_sound(mlp: Profile) -> None:
    """A profile breaks no rule of the format, and comes back from its file the same."""
    assert violations(mlp) == []
    assert loads(pretty(mlp)) == mlp


def test_machine_is_what_was_asked_for(mlp: Profile) -> None:
    """Devices, their memory, their pacing and the load are those of the options."""
    assert [device.usable_bytes for device in mlp.machine.devices] == [1 << 20, 1 << 20]
    assert {device.emulation for device in mlp.machine.devices} == {OPTIONS.emulation}
    assert [link.kind for link in mlp.machine.devices[0].links] == ["h2d", "d2h", "d2d", "p2p"]
    assert mlp.machine.load == 2
    assert mlp.machine.host.usable_bytes == 1 << 30


def test_what_devices_send_to_each_other_is_measured(mlp: Profile) -> None:
    """Alone and beside copies both ways, at the rate that emulated devices were given."""
    found = mlp.machine.devices[0].links
    (p2p,) = [one for one in found if one.kind == "p2p"]
    assert 0 < max(p2p.alone.bytes_per_s, p2p.both.bytes_per_s) < 1.1e8
    assert Links.of(Device("d", "cpu", 1, 1, found)).send_us(10**7) == copy_us(p2p.both, 10**7)


def test_linear_bytes_are_those_computed_by_hand(mlp: Profile) -> None:
    """A Linear(32, 32) under AdamW: padded parameters, as much gradient, twice as much state."""
    linear = mlp.tasks[0].layers[1]
    params = align(32 * 32 * 4) + align(32 * 4)
    assert (linear.param_bytes, linear.grad_bytes) == (params, params)
    assert linear.state_bytes == 2 * params
    for cost in linear.costs:
        boundary = cost.microbatch * 32 * 4
        assert (cost.in_bytes, cost.out_bytes) == (align(boundary), align(boundary))
        assert cost.forward_peak_bytes == boundary
        assert cost.saved_bytes == boundary  # its input lies in the slab
        assert cost.offload_bytes == align(boundary)  # the next layer's input


def test_a_backward_that_draws_is_refused() -> None:
    """Random numbers in a backward could not be those of the plain loop."""

    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0] * torch.rand(1)

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Draws.apply(x)

    case = Case(toy("toy", Layer()), Layer(), torch.rand(4, 4, requires_grad=True), None, False, 4)
    with pytest.raises(DrawError, match="draws random numbers in its backward"):
        layer_cost(case, LAB)


def test_batches_hold_inputs_and_targets(mlp: Profile) -> None:
    """Every microbatch size is there with the padded bytes of its inputs and targets."""
    task = mlp.tasks[0]
    assert task.batch == BATCH
    assert [(b.microbatch, b.batch_bytes) for b in task.batches] == [
        (n, align(n * WIDTH * 4) + align(n * 4 * 4)) for n in (1, 2, 4, 8)
    ]


def test_backward_peak_covers_what_was_saved(mlp: Profile) -> None:
    """No layer needs less at the height of its backward than its forward left behind."""
    for layer in mlp.tasks[0].layers:
        for cost in layer.costs:
            assert cost.backward_peak_bytes >= cost.saved_bytes > 0


def test_only_the_dropout_layer_draws(mlp: Profile) -> None:
    """Draws grow with the microbatch in the layer with dropout and are 0 elsewhere."""
    first, *others = mlp.tasks[0].layers
    draws = [cost.rng_draws for cost in first.costs]
    assert all(draws)
    assert {cost.rng_draws for layer in others for cost in layer.costs} == {0}


@pytest.mark.parametrize(("fused", "least", "most"), [(True, 0, 255), (False, 4096, 3 * 4096)])
def test_update_peak_is_what_a_step_takes_beside_its_state(
    fused: bool, least: int, most: int
) -> None:
    """Fused AdamW needs next to nothing, the plain one temporaries of a parameter's size."""
    optimizer = partial(AdamW, fused=fused, foreach=False)
    task = Task("toy", nn.Linear(32, 32, bias=False), batches, F.mse_loss, optimizer, steps=1)
    layer, x = build(task)[0], torch.randn(2, 32)
    case = Case(task, layer, x, Batch(x, torch.randn(2, 32)), True, 2)
    state = layer_state(case, list(layer.parameters()), LAB)
    assert state.state_bytes == 2 * 32 * 32 * 4
    assert least <= state.update_peak_bytes <= most


def test_tied_weight_counts_once() -> None:
    """A shared weight belongs to the first layer; a layer without parameters has no update. There
    is one thread for each emulated device, and as many as before behind the profile."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    (task,) = profile(f"{TOYS}:tied", OPTIONS).tasks
    found = torch.get_num_threads()
    torch.set_num_threads(before)
    assert found == 2
    assert task.ties == ((0, 2),)
    assert [layer.param_bytes for layer in task.layers[:3]] == [WIDTH * WIDTH * 4, 0, 0]
    assert [layer.state_bytes for layer in task.layers[:3]] == [2 * WIDTH * WIDTH * 4, 0, 0]
    assert task.layers[2].update_host.median_us == 0


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("raising", "task raising: layer 1 (Raising): RuntimeError: no room for 8 features"),
        ("two_outputs", "task tuple: layer 2 (Linear): TypeError: linear(): argument 'input'"),
    ],
)
def test_unfit_workload_is_refused_in_one_sentence(function: str, sentence: str) -> None:
    """The message begins with task and layer and says in one line what is wrong."""
    with pytest.raises(WorkloadError) as caught:
        profile(f"{TOYS}:{function}", OPTIONS)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_varying_draws_are_unknown() -> None:
    """A layer that draws now more, now less gets None and not the number of one occasion."""

    class Moody(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * torch.rand(4 * self.calls).mean()

    task = toy("toy", Moody())
    case = Case(task, Moody(), torch.randn(8, 4), None, False, 8)
    assert layer_cost(case, LAB).rng_draws is None


def test_update_leaves_the_parameters_alone() -> None:
    """Timing an optimizer step does not train the layer that is measured next."""
    task = toy("toy", nn.Linear(WIDTH, 4))
    layer = next(build(task)[0].children())
    before = [p.detach().clone() for p in layer.parameters()]
    found = batch(task)
    case = Case(task, layer, found.inputs, found, True, BATCH)
    state = layer_state(case, list(layer.parameters()), replace(LAB, samples=2))
    assert state.update_device.samples == 2
    assert all(map(torch.equal, before, layer.parameters()))


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(8, [1, 2, 4, 8]), (12, [1, 2, 3, 6, 12]), (6, [1, 2, 3, 6]), (7, [1, 7]), (1, [1])],
)
def test_microbatch_sizes_divide_the_batch(size: int, sizes: list[int]) -> None:
    """Each at least half again as large as the one before, and the batch itself."""
    assert microbatch_sizes(size) == sizes


def test_long_samples_are_fewer() -> None:
    """All samples are taken when they are short, three when each takes a second."""
    assert [t.samples for t in timed(lambda: (10_000, 5_000), replace(LAB, samples=7))] == [7, 7]
    assert [t.samples for t in timed(lambda: (10**9, 5_000), replace(LAB, samples=7))] == [3, 3]


def test_time_is_the_spread_of_the_samples_after_the_first() -> None:
    """The warm-up counts nothing; the median and the 10th and 90th percentile are in µs."""
    values = iter([10**9, *(1000 * k for k in range(11))])
    (found,) = timed(lambda: (next(values),), replace(LAB, samples=11))
    assert (found.p10_us, found.median_us, found.p90_us) == (1, 5, 9)


def test_backward_is_a_part_of_recomputation_and_backward(mlp: Profile) -> None:
    """Both come from the same runs, so the half never lasts longer than the whole."""
    costs = [cost for layer in mlp.tasks[0].layers for cost in layer.costs]
    assert all(0 < c.backward.median_us <= c.recompute_backward.median_us for c in costs)


def test_packing_is_timed_where_there_is_any(mlp: Profile) -> None:
    """For every layer but the last, whose graph is never packed."""
    *inner, last = [layer.costs for layer in mlp.tasks[0].layers]
    for cost in (cost for costs in inner for cost in costs):
        assert 0 < cost.unpack_backward.median_us <= cost.pack_backward.median_us
    assert all(cost.pack_backward is None is cost.unpack_backward for cost in last)


def test_both_parts_of_a_backward_are_timed(mlp: Profile) -> None:
    """For every layer but the first; what is alive between them counts the output, which the next
    layer may keep."""
    first, *rest = [layer.costs for layer in mlp.tasks[0].layers]
    assert all(cost.backward_input is None is cost.left_bytes for cost in first)
    for cost in (cost for costs in rest for cost in costs):
        assert cost.backward_input.median_us > 0 < cost.backward_weight.median_us
        assert cost.left_bytes
        assert 0 < (cost.kept_grad_bytes or 0) < cost.left_bytes
        assert (cost.input_peak_bytes or 0) >= cost.saved_bytes + (cost.kept_grad_bytes or 0)
    assert all((cost.left_bytes or 0) >= cost.out_bytes for costs in rest[:-1] for cost in costs)


class Counted(nn.Linear):
    """Its gradients have other bits in every backward."""

    backwards = 0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.register_hook(self._grown)  # type: ignore[no-untyped-call]
        return y

    def _grown(self, grad: Tensor) -> Tensor:
        self.backwards += 1
        return grad * self.backwards


def test_parts_of_other_bits_are_not_timed() -> None:
    """A layer whose parts do not give what the whole does has no times of them."""
    x = torch.ones(4, WIDTH, requires_grad=True)
    for layer, splits in ((nn.Linear(WIDTH, WIDTH), True), (Counted(WIDTH, WIDTH), False)):
        case = Case(toy("toy", layer), layer, x, None, first=False, microbatch=4)
        assert (layer_cost(case, LAB).backward_input is not None) is splits


def test_a_layer_whose_input_needs_no_gradient_is_not_split() -> None:
    """As above one that learns nothing: the first part of its backward would do all of it."""
    x, layer = torch.ones(4, WIDTH), nn.Linear(WIDTH, WIDTH)
    case = Case(toy("toy", layer), layer, x, None, first=False, microbatch=4)
    assert layer_cost(case, LAB).left_bytes is None


def test_slow_devices_draw_beside_each_other() -> None:
    """Two of them share the generator in a run, even if one at a time computes while measured."""
    slow = Emulation(10**9, 10**9, 5, 3)
    labs = [_lab(LAB.device, replace(OPTIONS, emulation=slow, devices=n)) for n in (1, 2)]
    assert [lab.load for lab in labs] == [1, 1]
    assert [lab.alone for lab in labs] == [True, False]


def test_rate_is_the_line_through_two_points() -> None:
    """20 µs and 100 MB/s are found from two copies; noise never gives a negative latency."""
    assert fit((1000, 30.0), (10_000, 120.0)) == Rate(bytes_per_s=100_000_000, latency_us=20)
    assert fit((1000, 5.0), (10_000, 100.0)).latency_us == 0
    assert fit((1000, 200.0), (10_000, 100.0)) == Rate(bytes_per_s=100_000_000, latency_us=190)


def test_command_writes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`profile` ends with 0, leaves a sound file and prints a line per task."""
    target = tmp_path / "new" / "pair.json"
    sizes = ["--device-memory", "1MiB", "--samples", "1", "--devices", "1"]
    assert main(["profile", f"{TOYS}:pair", *sizes, "-o", str(target)]) == 0
    assert [task.name for task in load(target).tasks] == ["one", "two"]
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["task", "one", "two", "times", "profile:"]


class Large(nn.Linear):
    """Takes more memory than there is for more than so many samples."""

    def __init__(self, most: int) -> None:
        super().__init__(WIDTH, 4)
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError
        return super().forward(x)


def _profiled(task: Task) -> Profile:
    with mock.patch.object(profiler, "load", return_value=([task], {task.name: ""})):
        return profile("tests:large", replace(OPTIONS, devices=1, samples=1))


@pytest.mark.parametrize("measured", [False, True], ids=["run", "measured"])
def test_a_microbatch_that_is_too_large_for_the_device_is_left_out(measured: bool) -> None:
    """Whether the layer cannot be run, or can be run and not be measured."""
    cost = alike.layer_cost

    def limited(case: Case, lab: Lab) -> LayerCost:
        if case.microbatch > 4:
            raise torch.OutOfMemoryError
        return cost(case, lab)

    with mock.patch.object(alike, "layer_cost", limited):
        made = _profiled(toy("toy", nn.Linear(WIDTH, WIDTH), Large(8 if measured else 4)))
    (task,) = made.tasks
    assert [[c.microbatch for c in layer.costs] for layer in task.layers] == [[1, 2, 4]] * 2
    assert [batch.microbatch for batch in task.batches] == [1, 2, 4]


def test_a_layer_that_fits_at_no_size_is_refused() -> None:
    """By its task, or by its own name where it only cannot be measured."""
    with pytest.raises(WorkloadError, match="task toy: not even one sample fits the device"):
        _profiled(toy("toy", Large(0)))
    with (
        mock.patch.object(alike, "layer_cost", side_effect=torch.OutOfMemoryError),
        pytest.raises(WorkloadError, match=r"layer 0 \(Linear\): does not fit the device with"),
    ):
        _profiled(toy("toy", nn.Linear(WIDTH, 4)))


class Circle:
    """Something that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_nothing_is_collected_while_bytes_are_counted() -> None:
    """Garbage of before is gone, and what becomes garbage stays until the count is over: what an
    allocator counts would shrink in the middle of it."""
    before = weakref.ref(Circle())
    with no_garbage():
        assert before() is None
        meanwhile = weakref.ref(Circle())
        kept = [[number] for number in range(100_000)]
        assert meanwhile() is not None
    assert gc.isenabled()
    assert kept


class _Inexact(torch.autograd.Function):
    """A backward whose last bits are others each time, unless determinism is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        if torch.are_deterministic_algorithms_enabled():
            return grads[0]
        return grads[0] * (1 + 1e-6 * (1 + Noisy.calls.pop()))


class Noisy(nn.Module):
    calls = list(range(1000))

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(_Inexact.apply(x))


def test_a_backward_with_other_bits_each_time_is_still_one_of_two_parts() -> None:
    """As attention's is on CUDA: the parts are compared with the whole where it is exact."""
    x = rows(0)[0].requires_grad_()
    bench = Bench(Case(task(Noisy, rows, 1), Noisy(), x, None, False, len(x)), LAB.device)
    assert bench.splits
    assert not torch.are_deterministic_algorithms_enabled()
