"""Packing of what a graph keeps: the room it takes, and that it is found again."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from executor.devices.device import aligned
from executor.numerics.packing import Packing

WIDTH = 16


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
