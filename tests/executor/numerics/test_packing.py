"""What a graph keeps, packed: the room it takes and is said to take, found again, and counted."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import combinations

import pytest
import torch
from support.lab import LAB
from support.toys import WIDTH, batches, toy
from torch import Tensor, nn

from executor.devices.device import aligned
from executor.numerics.meter import MemoryMeter
from executor.numerics.packing import Packing
from executor.numerics.values import hold
from executor.profiling.bench import Bench, Case
from executor.profiling.layer import layer_cost
from executor.shards.shard import Shard

pytestmark = pytest.mark.usefixtures("warm")


def packing(x: Tensor, room: int = 1 << 14, constants: tuple[Tensor, ...] = ()) -> Packing:
    return Packing({"param": aligned(256), 0: x}, aligned(room), constants)


def found(made: Packing, x: Tensor, *notes: object) -> list[Tensor]:
    """The tensors of the notes, from the flats where they were packed."""
    saved = made._saved
    assert saved is not None
    made.move({"param": aligned(256), 0: x}, saved)
    return [made.unpack(note) for note in notes]  # type: ignore[arg-type]


def test_a_storage_is_packed_once() -> None:
    """Views of one storage share its bytes, each with its own shape, strides and offset."""
    x, base = torch.rand(4), torch.rand(6, 10)
    views = [base, base.t(), base[2:4, ::3], base.flatten()[7:], base[3, 4]]
    made = packing(x)
    notes = [made.pack(view) for view in views]
    assert made.bytes == 256
    wanted = [view.clone() for view in views]
    base.zero_()
    for view, want, again in zip(views, wanted, found(made, x, *notes), strict=True):
        assert torch.equal(again, want)
        assert again.stride() == view.stride()


def test_each_storage_begins_aligned() -> None:
    """The second storage begins at the next multiple of 256 bytes, whatever the dtypes."""
    x, made = torch.rand(4), packing(torch.rand(4))
    notes = [made.pack(torch.ones(3, dtype=kind)) for kind in (torch.bool, torch.float64)]
    assert made.bytes == 512
    assert [note.offset for note in notes if not isinstance(note, Tensor)] == [0, 256]
    assert all(again.data_ptr() % 256 == 0 for again in found(made, x, *notes))


def test_a_reused_address_is_another_storage() -> None:
    """A storage freed after it was packed is not mistaken for the one that takes its place."""
    x, made = torch.rand(4), packing(torch.rand(4), room=1 << 20)
    notes, wanted, addresses = [], [], set()
    for value in range(50):
        tensor = torch.full((64,), float(value))
        addresses.add(tensor.untyped_storage()._cdata)
        notes.append(made.pack(tensor))
        wanted.append(value)
    assert len(addresses) < 50  # some address was used again
    assert [int(again[0]) for again in found(made, x, *notes)] == wanted


def test_a_change_in_place_is_packed_again() -> None:
    """The same tensor before and after a change are two values."""
    x, made, tensor = torch.rand(4), packing(torch.rand(4)), torch.zeros(3)
    first = made.pack(tensor)
    second = made.pack(tensor.add_(1))
    assert [int(again[0]) for again in found(made, x, first, second)] == [0, 1]


def test_input_and_constants_take_no_room() -> None:
    """Views of the input are found in the input's new place; buffers are kept as they are."""
    x, buffer = torch.rand(8, 4), torch.rand(5)
    made = packing(x, constants=(buffer,))
    notes = [made.pack(x[3:, 1]), made.pack(buffer[2:])]
    assert made.bytes == 0
    moved = x.clone() + 1
    part, constant = found(made, moved, *notes)
    assert torch.equal(part, moved[3:, 1])
    assert constant.data_ptr() == buffer[2:].data_ptr()


def _sizes(layer: nn.Module, x: Tensor, room: Tensor | None) -> int:
    made = Packing({"param": aligned(256), 0: x}, room, layer.buffers())
    with made.hooks():
        layer(x.requires_grad_())
    return made.bytes


def test_counting_needs_no_room() -> None:
    """Without a flat to pack into, as much is counted as with one."""
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.5)),
        lambda: nn.LayerNorm(WIDTH),
        nn.Identity,
    ]
    for make in makers:
        layer, x = make(), torch.rand(4, WIDTH)
        assert _sizes(layer, x, None) == _sizes(layer, x.detach(), aligned(1 << 14))


def test_what_lies_elsewhere_stays_there() -> None:
    """A kernel's scalars on the host are read there; only what is on the device is packed."""
    x = torch.zeros(4, device="meta")
    made = Packing({"param": torch.zeros(4, device="meta"), 0: x}, None, [])
    seed = torch.tensor(7)
    assert made.pack(seed) is seed
    assert made.bytes == 0


def test_pieces_of_a_storage_have_versions_of_their_own() -> None:
    """Changed in place after another piece was packed, a piece is what it is then."""
    x, made = torch.rand(4), packing(torch.rand(4))
    one, other = torch.zeros(2, 6).unsafe_chunk(2, -1)
    notes = [made.pack(one.add_(1)), made.pack(other.add_(2)), made.pack(other.t())]
    values = found(made, x, *notes)
    assert [set(value.flatten().tolist()) for value in values] == [{1.0}, {2.0}, {2.0}]
    assert made.bytes == 512


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_are_found_again(kind: type[nn.Module]) -> None:
    """Their gates are pieces of one tensor, changed in place one by one."""
    layer, x = kind(WIDTH, WIDTH, batch_first=True), torch.rand(2, 5, WIDTH)
    grads = []
    for made in (None, Packing({"param": aligned(256), 0: x}, aligned(1 << 18), ())):
        layer.zero_grad()
        with made.hooks() if made else nullcontext():
            y = layer(x)[0]
        if made:
            made.move({"param": aligned(256), 0: x}, made._saved)  # type: ignore[arg-type]
        y.square().sum().backward()
        grads.append([parameter.grad for parameter in layer.parameters()])
    assert all(map(torch.equal, *grads))


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


def test_the_peak_is_of_what_lives_at_once() -> None:
    """Freed before the next is made: the peak is one tensor, not their sum."""
    with MemoryMeter() as meter:
        for _ in range(3):
            a = torch.empty(1000, dtype=torch.uint8)
            del a
    assert (meter.peak_bytes, meter.live_bytes) == (1000, 0)


def test_views_of_old_tensors_are_free() -> None:
    """Slices, in-place changes and copies into what existed before take nothing."""
    old = torch.zeros(1000)
    with MemoryMeter() as meter:
        old[10:20].add_(1)
        old.view(10, 100)[3].copy_(old[:100])
    assert meter.peak_bytes == 0


def test_a_storage_counts_once() -> None:
    """Views of a new tensor are not counted again, and keep it alive."""
    with MemoryMeter() as meter:
        a = torch.zeros(250)
        b = a.view(10, 25)[2]
        del a
        assert meter.live_bytes == 1000
        assert b.numel() == 25
    del b
    assert meter.live_bytes == 0


def test_a_meter_goes_on_where_it_was_left() -> None:
    """Entered again, the peak begins at what is still alive; frees in between are seen."""
    meter = MemoryMeter()
    with meter:
        a, b = torch.empty(1000, dtype=torch.uint8), torch.empty(500, dtype=torch.uint8)
    del b
    with meter.restart():
        pass
    assert meter.peak_bytes == meter.live_bytes == 1000
    with meter.restart():
        del a
        torch.empty(300, dtype=torch.uint8)
    assert (meter.peak_bytes, meter.live_bytes) == (1000, 0)
