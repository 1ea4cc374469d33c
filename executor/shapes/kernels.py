"""One layer on one microbatch of the meta device: its kernels, and the bytes alive at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from executor.cutting import through
from executor.numerics import MemoryMeter, OpMode, detached, hold, tensors_of
from executor.workload import Batch, Ending
from profiles.codec import align
from profiles.schema import LayerCost
from profiles.works import NO_TIME, Kernel, Kernels

# Of a table these read only the rows that they give.
_PICKS = ("embedding", "index", "index_select", "gather", "nll_loss_forward")
_SUM = torch.ops.aten.sum.default
_ASKED: dict[Any, Callable[[Tensor], int | bool]] = {
    torch.ops.aten.all.default: lambda told: True,
    torch.ops.aten.any.default: lambda told: False,
    _SUM: Tensor.numel,  # of what is true
}
_NOTHING = ("detach", "_unsafe_view", "empty", "empty_like", "new_empty")


class Ran(NamedTuple):
    """cost: without times. output: detached."""

    cost: LayerCost
    forward: Kernels
    backward: Kernels
    output: Any


def ran(layer: nn.Module, x: Any, batch: Batch, ending: Ending | None) -> Ran:
    """Run a layer on x forward and backward; with `ending` to the loss, which counts as backward's.

    Parameters have gradients already, to which these are added."""
    held, kept = hold(x), _Kept([*layer.parameters(), *layer.buffers(), *tensors_of(x)])
    forwards, backwards, alone, whole = _Launches(), _Launches(), MemoryMeter(), MemoryMeter()
    with fused(), torch.no_grad(), alone, forwards:
        output = through(layer, x, batch.inputs)
    del output
    with fused(), whole, torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
        made = through(layer, detached(x), batch.inputs)
        output = detached(made)
        with backwards:
            ends = [ending.loss_of(made, batch)] if ending else tensors_of(made)
    saved, out_bytes = whole.live_bytes, sum(align(t.nbytes) for t in tensors_of(output))
    with whole, backwards:
        ends = [end for end in ends if end.requires_grad]
        if ends:
            torch.autograd.backward(ends, [torch.empty_like(end) for end in ends])
    cost = LayerCost(
        microbatch=1,
        in_bytes=held.layout.boundary_bytes,
        out_bytes=out_bytes if ending else hold(output).layout.boundary_bytes,
        saved_bytes=saved,
        forward_peak_bytes=alone.peak_bytes,
        backward_peak_bytes=whole.peak_bytes,
        rng_draws=0,
        forward=NO_TIME,
        recompute_backward=NO_TIME,
        backward=NO_TIME,
        offload_bytes=None if ending else kept.bytes + out_bytes,
    )
    return Ran(cost, tuple(forwards.seen), tuple(backwards.seen), output)


class Usual(OpMode):
    """Answers what a model's code asks about all values, which are not there: that every one is as
    it should be, and none is odd."""

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func in _ASKED and args[0].is_meta and (args[0].dtype is torch.bool or func is not _SUM):
            return torch.tensor(_ASKED[func](args[0]), device="cpu")
        return func(*args, **kwargs)


class _Launches(OpMode):
    """Notes each operation that launches a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Kernel] = []

    def op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        name, made = func.overloadpacket.__name__, tensors_of(out)
        if func.is_view or not made or name in _NOTHING:
            return out
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        given = [*given[1:], *made] if name in _PICKS else given
        count = flop_registry.get(func.overloadpacket)
        flops = int(count(*args, **kwargs, out_val=out)) if count else 0
        attends = "scaled_dot_product" in name
        if attends and any(value is True for value in (*args[4:], *kwargs.values())):
            flops //= 2  # causal, as in these operations nothing else is that may be true
        moved = sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in (*given, *made))
        low = flops > 0 and made[0].itemsize == 2
        self.seen.append((flops, moved, attends, low))
        return out


class _Kept:
    """The tensors that a graph keeps, beside those that lie elsewhere."""

    def __init__(self, elsewhere: list[Tensor]) -> None:
        self._known = {t.untyped_storage()._cdata for t in elsewhere}
        self.bytes = 0

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.bytes += align(storage.nbytes())
        return tensor


@contextmanager
def fused() -> Iterator[None]:
    """Meanwhile attention and dropout are what they are on GPUs, one kernel each: on the meta
    device torch would have a matrix of all pairs of tokens, and random numbers apart."""
    before = F.scaled_dot_product_attention, F.dropout
    F.scaled_dot_product_attention, F.dropout = _attended, _dropped  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout = before


def _attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    ops = torch.ops.aten
    if attn_mask is None:
        return ops._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
    if enable_gqa:
        each = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(each, -3) for x in (key, value))
    mask = query.new_empty(()).expand(*query.shape[:-1], key.shape[-2])
    return ops._scaled_dot_product_efficient_attention(
        query, key, value, mask, False, dropout_p, is_causal, scale=scale
    )[0]


def _dropped(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(x, p, True)[0] if training and p else x
