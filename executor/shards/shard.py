"""A shard: the user's own layers as a shell around memory that comes and goes.

Invariant: parameters, gradients and optimizer state are views of the flats that were bound last;
nothing a shard computes outlives the op except what it wrote there, the values that its layers'
buffers had, and a graph if asked for one.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from executor.errors import WorkloadError, one_line
from executor.numerics import (
    Buffers,
    Found,
    HooksRefused,
    Layout,
    Packing,
    Pieces,
    Root,
    Snapshot,
    Value,
    forgetting,
    hold,
    write_grads,
)
from executor.optim import Factory, Recipe, Scaling, ShardOptimizer
from executor.shards.forward import Forward, Modes
from executor.shards.graphs import Done, Graph, edges
from executor.shards.parameters import NONE, Absent, Parameters
from executor.shards.tied import Tie, Tied
from executor.workload import Batch, Ending
from profiles.schema import Precision

_CPU = torch.device("cpu")


class Shard:
    """Contiguous layers run as one. `ending` is given for the task's last shard only; `first`: the
    input is the data, which becomes bf16 where the parameters are. `tied`: its part in parameters
    that other shards use as well; `parameters` are without those that it borrows.

    `apart`: what it does not train lies in a flat of its own, the base of several tasks.

    Bind parameters before a forward and a backward. One thread at a time may use a shard; `replica`
    makes another one for another device.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        optimizer: Factory | Recipe,
        ending: Ending | None = None,
        precision: Precision = "fp32",
        *,
        first: bool = False,
        found: Found | None = None,
        tied: Tied | None = None,
        apart: bool = False,
    ) -> None:
        self.layers = list(layers)
        self._factory = optimizer
        self._forward = Forward(self.layers, ending, precision, first)
        self.tied = tied
        borrowed = list(tied.borrowed.values()) if tied else ()
        self.parameters = Parameters(self.layers, precision, borrowed, apart=apart)
        self.buffers = Buffers(self.layers, found)
        # None before the first update, and in a shard without trainable parameters.
        self.optimizer: ShardOptimizer | None = None
        self._modes = Modes(self.layers)

    @property
    def param_bytes(self) -> int:
        return self.parameters.views.bytes

    @property
    def grad_bytes(self) -> int:
        return self.parameters.grad_views.bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state; known after the first update."""
        return self.optimizer.state_bytes if self.optimizer else 0

    def write_params(
        self, flat: Tensor | None, state: Tensor | None = None, base: Tensor | None = None
    ) -> None:
        """Copy the current parameters into `flat` (uint8, param_bytes) and bind them there; None:
        keep nothing but the masters. Those that are apart go into `base` (uint8).

        In bf16 they become so now; `state` (uint8) gets the fp32 masters."""
        self.parameters.write(flat, state, base)
        self.buffers = Buffers(self.layers, self.buffers.found)  # bf16 made others of them

    def forward(
        self, x: Value, out: Tensor, known: Layout | None = None
    ) -> tuple[Layout, Snapshot]:
        """Run the layers on `x`, keep no graph, and write the boundary to `out` (uint8); how it
        lies there, and the values of changing buffers that this began with.

        `known`: how it lay the last time. HooksRefused as by `bare`.
        """
        with self.buffers.kept(snapshot=True) as before, self.bare():
            y = hold(self.run(x, grads=True))
        layout = y.layout if known is None else y.layout.like(known)
        layout.write_boundary(out, y.tensors)
        return layout, tuple(before)

    @contextmanager
    def bare(self) -> Iterator[None]:
        """Around a forward that has no backward. Gradients are on as when it is run again, since
        many kernels are chosen by that, but nothing is kept for them. HooksRefused by layers that
        use what is kept: from then on they have it, until the op ends."""
        try:
            with nullcontext() if self.buffers.found.keeps else forgetting():
                yield
        except HooksRefused:
            self.buffers.found.keeps = True
            raise

    def forward_graph(
        self, x: Value, out: Tensor, *, saved: Tensor | None = None, halves: bool = False
    ) -> tuple[Layout, Graph]:
        """`forward` and `graph` in one; what the graph keeps is packed into `saved` (uint8).

        `halves`: its backward comes in two parts. HooksRefused as by `bare`, then and there."""
        grads: dict[int, Tensor] = {}
        begun = x.begun(grads)
        with self.buffers.apart(), self._pieces(halves and saved is None) as pieces:
            packing = self.packing(begun.tensors, saved) if saved is not None else None
            with packing.hooks() if packing else nullcontext():
                y = hold(self._forward.run(begun))
        y.layout.write_boundary(out, y.tensors)
        return y.layout, Graph(begun, grads, edges(y), packing=packing, pieces=pieces)

    @contextmanager
    def _pieces(self, wanted: bool) -> Iterator[Pieces | None]:
        """Around a forward whose graph can be freed piece by piece, unless layers forbid it."""
        pieces = Pieces() if wanted and not self.buffers.found.keeps else None
        try:
            with pieces.hooks() if pieces else nullcontext():
                yield pieces
        except HooksRefused:
            self.buffers.found.keeps = True
            raise

    def graph(
        self,
        x: Value,
        *,
        batch: Batch | None = None,
        divisor: float = 1.0,
        scale: Tensor | None = None,
        before: Snapshot | None = None,
        halves: bool = False,
    ) -> Graph:
        """Run the layers on `x` with a graph; the last shard takes its `batch` and adds the loss.

        `divisor`: of the loss. `scale`: by what the loss is multiplied.
        `before`: what a forward that was run on `x` says of buffers that it changed; None where
        there was none. `halves`: as for `forward_graph`.
        """
        grads: dict[int, Tensor] = {}
        begun, buffers = x.begun(grads), self.buffers
        counts = buffers.apart() if halves else buffers.kept(snapshot=False)
        made = counts if before is None else buffers.again(before)
        with made, self._pieces(halves) as pieces:
            if batch is None:
                return Graph(begun, grads, edges(hold(self._forward.run(begun))), pieces=pieces)
            loss = self._forward.loss(begun, batch, divisor)
        scaled = loss if scale is None else loss * scale.squeeze()
        ends = scaled if loss.requires_grad else None
        return Graph(begun, grads, ends, loss.detach(), pieces=pieces)

    def run(self, x: Value, inputs: Any = None, *, grads: bool = False) -> Any:
        """The last layer's output for `x`; with a graph where gradients are on, `grads`: back to
        the tensors of x that need some. A last layer with `takes_inputs` gets `inputs` too."""
        return self._forward.run(x.begun({}) if grads else x.apart(), inputs)

    def losses(
        self, x: Value, batch: Batch, divisor: float = 1.0, *, grads: bool = False
    ) -> Tensor:
        """The last shard's loss for the boundary `x`, divided by the divisor; with a graph
        where gradients are on."""
        return self._forward.loss(x.begun({}) if grads else x.apart(), batch, divisor)

    def judge(self, x: Value, batch: Batch, divisor: float) -> tuple[Tensor, Tensor | None]:
        """The last shard's loss as of `losses`, and the metrics of each sample."""
        return self._forward.judge(x.apart(), batch, divisor)

    def train(self, training: bool = True) -> None:
        """Let the layers be in the modes that they are trained in, or all in eval mode."""
        self._modes.train(training)

    def evaluate(self, x: Value, out: Tensor) -> Layout:
        """Run the layers on `x` and write the boundary to `out` (uint8); how it lies there."""
        y = hold(self.run(x))
        y.layout.write(out, y.tensors)
        return y.layout

    def packing(self, leaves: Sequence[Tensor], saved: Tensor | None) -> Packing:
        """For a forward on a value's tensors with the bound parameters."""
        constants = [buffer for layer in self.layers for buffer in layer.buffers()]
        return Packing(self._places(leaves), saved, constants)

    def _places(self, leaves: Sequence[Tensor]) -> dict[str | int, Tensor]:
        """Tensors that a packed graph finds outside: the bound parameters, and a value."""
        own = self.parameters
        places: dict[str | int, Tensor] = {"param": own.flat, **dict(enumerate(leaves))}
        if own.frozen:
            places["base"] = own.base
        if self.tied:
            places["tied"] = self.tied.bound
        return places

    def backward(
        self,
        graph: Graph,
        grads: Tensor,
        *,
        dy: Mapping[int, Tensor] | None = None,
        dx: Tensor | None = None,
        absent: Absent | None = None,
        tie: Tie | None = None,
    ) -> Done:
        """Go back through `graph`, one of this shard; gradients of parameters go to `grads` (uint8,
        grad_bytes).

        Any shard but the last takes `dy`, the gradients of the boundary's tensors that have some.
        `dx` (uint8) is written last and may share bytes with the input or `dy`. Gradients are added
        to those in `grads`, of which the `absent` are none; None: these are overwritten.
        `tie`: what other shards that use the same parameters have given for this microbatch.
        """
        self.parameters.expect_grads(grads, absent)
        roots = self.roots(graph, dy or {}, tie)
        if roots:
            ends = cast("list[Tensor]", [end for end, _ in roots])  # edges may be among them
            torch.autograd.backward(ends, [grad for _, grad in roots])
        written = write_grads(dx, graph.grads) if dx is not None else ()
        left = self.tied.absent(tie) if self.tied and tie else NONE
        return Done(graph.loss, written, self.parameters.absent(), left)

    def roots(self, graph: Graph, dy: Mapping[int, Tensor], tie: Tie | None) -> list[Root]:
        """The edges at which a backward through `graph` begins, with their gradients."""
        roots: list[Root] = [*self.tied.begin(tie)] if self.tied and tie else []
        if isinstance(graph.ends, Tensor):
            roots.append((graph.ends, None))
        elif graph.ends:
            roots += [(graph.ends[n], grad) for n, grad in dy.items() if n in graph.ends]
        return roots

    def move(self, graph: Graph, x: Value, saved: Tensor) -> None:
        """Let a packed graph go on with the bound parameters, with `x` and `saved` (uint8)."""
        if graph.packing is not None:
            graph.packing.move(self._places(x.tensors), saved)
            for mine, tensor in zip(graph.x.tensors, x.tensors, strict=True):
                mine.data = tensor.data

    def update(
        self,
        param_flat: Tensor | None,
        grad_flat: Tensor,
        state_flat: Tensor | None,
        scaling: Scaling | None = None,
        absent: Absent = NONE,
    ) -> None:
        """One optimizer step in place on these flats, on the host or on a device.

        `param_flat` None: of the parameters only masters are kept, in the state. `state_flat` None:
        the optimizer keeps no state beside its counters. `scaling`: by what gradients are
        multiplied, and whether the step is left out. The `absent` stay as they are.
        """
        self.parameters.bind(param_flat)
        self.parameters.bind_grads(grad_flat, absent)
        optimizer = self.optimizer or self.begin_optimizer()
        optimizer.step(state_flat, scaling, params=param_flat is not None)

    def restore(
        self,
        saved: Mapping[str, Mapping[str, Any]],
        names: Mapping[int, str],
        state: Tensor,
        settings: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Optimizer state by parameter name, `names` by the id of the parameter, into `state`;
        `settings` of groups and schedulers, of all shards of a task."""
        if self.parameters.trainable:
            self.begin_optimizer().restore(saved, names, settings, state)

    def begin_optimizer(self) -> ShardOptimizer:
        """Its optimizer, made anew."""
        own = self.parameters
        self.optimizer = ShardOptimizer(own.all, self._factory, own.masters)
        return self.optimizer

    def replica(self, where: torch.device = _CPU, *, apart: bool = False) -> "Shard":
        """The same layers as another shell, without parameters until some of `where` are bound.

        Module buffers are shared, or with `apart` copied to a device that has memory of its own."""
        memo: dict[int, Any] = dict(self.parameters.hollow(where))
        own = (b for layer in self.layers for b in layer.buffers())
        memo |= {id(b): b.to(where, copy=True) if apart else b.to(where) for b in own}
        try:
            layers = copy.deepcopy(self.layers, memo)
        except Exception as error:
            raise WorkloadError(f"a layer cannot be copied: {one_line(error)}") from error
        twin = Shard(
            layers,
            self._factory,
            self._forward.ending,
            self._forward.precision,
            first=self._forward.first,
            found=self.buffers.found,
            tied=self.tied.of(memo) if self.tied else None,
            apart=self.parameters.apart,
        )
        twin.parameters.take_layout(self.parameters)
        return twin
