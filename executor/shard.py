"""A shard: the user's own layers as a shell around memory that comes and goes.

Invariant: parameters, gradients and optimizer state are views of the flats that were bound last;
nothing a shard computes outlives the op except what it wrote there, and a graph if asked for one.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from executor.errors import WorkloadError, one_line
from executor.flat import Spec, Views, spec_of, view
from executor.gradients import Home, foreign_hooks, homes
from executor.optimizer import Factory, Scaling, ShardOptimizer
from executor.packing import PackError, Packing
from executor.precision import computing, norms_of
from profiles.codec import align
from profiles.schema import Precision

_CPU = torch.device("cpu")

Loss = Callable[[Tensor, Tensor], Tensor]


class Done(NamedTuple):
    """What a backward made: the loss (last shard), and how dx lies in its buffer."""

    loss: Tensor | None
    dx: Spec | None


@dataclass(frozen=True, eq=False)
class Graph:
    """What a forward left for its backward, which can be run once.

    `leaf` is the input as autograd knows it, `end` where backward begins (None: nothing to do).
    With `packing` the graph holds no memory, and parameters and input may lie elsewhere later;
    without, both must be where they were.
    """

    leaf: Tensor
    end: GradientEdge | Tensor | None
    loss: Tensor | None
    packing: Packing | None


class Shard:
    """Contiguous layers run as one. `loss` is given for the task's last shard only; `first`: the
    input is the data, which becomes bf16 where the parameters are.

    Bind parameters before a forward, parameters and gradients before a backward. One thread at
    a time may use a shard; `replica` makes another one for another device.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        optimizer: Factory,
        loss: Loss | None = None,
        microbatches: int = 1,
        precision: Precision = "fp32",
        *,
        first: bool = False,
    ) -> None:
        self._layers = list(layers)
        self._factory = optimizer
        self._loss = loss
        self._microbatches = microbatches
        self._precision = precision
        self._first = first
        self.parameters = _unique(layers)
        self.trainable = [p for p in self.parameters if p.requires_grad]
        low = self._precision == "bf16"
        self._params = Views([_spec(p, low) for p in self.parameters])
        self._grads = Views([_spec(p, low) for p in self.trainable])
        self._masters = Views([_spec(p)._replace(dtype=torch.float32) for p in self.trainable])
        self._param_flat = torch.empty(0, dtype=torch.uint8)
        self._homes: list[Home] | None = None
        self._optimizer: ShardOptimizer | None = None

    @property
    def param_bytes(self) -> int:
        return self._params.bytes

    @property
    def grad_bytes(self) -> int:
        return self._grads.bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's state; known after the first update."""
        return self._optimizer.state_bytes if self._optimizer else 0

    @property
    def master_bytes(self) -> int:
        """Bytes of the fp32 copies at the beginning of the state; 0 where there are none."""
        return self._masters.bytes if self._precision == "bf16" else 0

    @property
    def adopted_bytes(self) -> int:
        """Bytes of what the optimizer itself keeps, without masters."""
        return self.state_bytes - self.master_bytes if self._optimizer else 0

    @property
    def optimizer(self) -> ShardOptimizer | None:
        """None before the first update, and in a shard without trainable parameters."""
        return self._optimizer

    def write_params(self, flat: Tensor, state: Tensor | None = None) -> None:
        """Copy the current parameters into `flat` (uint8, param_bytes) and bind them there.

        In bf16 they become so now; `state` (uint8) gets the fp32 masters."""
        if self._precision == "bf16":
            if state is not None:
                for master, parameter in zip(self._masters.at(state), self.trainable, strict=True):
                    master.copy_(parameter.detach())
            for layer in self._layers:
                layer.to(torch.bfloat16)
        for parameter, target in zip(self.parameters, self._params.at(flat), strict=True):
            target.copy_(parameter.detach())
        self.bind_params(flat)

    def bind_params(self, flat: Tensor) -> None:
        """Let the parameters be views of `flat`, whose bytes are already there."""
        if flat.data_ptr() == self._param_flat.data_ptr():
            return
        for parameter, value in zip(self.parameters, self._params.at(flat), strict=True):
            parameter.data = value
        self._param_flat = flat

    def bind_grads(self, flat: Tensor) -> None:
        """Let gradients end in `flat`."""
        for parameter, value in zip(self.trainable, self._grads.at(flat), strict=True):
            if parameter.grad is not value:
                parameter.grad = value

    def forward(self, x: Tensor, out: Tensor) -> Spec:
        """Run the layers on `x` without a graph and write the boundary to `out` (uint8).

        Returns how the boundary lies in `out`.
        """
        with torch.no_grad():
            y = self.run(x)
            spec = spec_of(y)
            view(out, spec).copy_(y)
        return spec

    def run(self, x: Tensor) -> Tensor:
        """The last boundary, or the outputs, for `x`; with a graph where gradients are on."""
        with computing(self._precision, x.device):
            return self._run(x)

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """The last shard's loss for the boundary `x`; with a graph where gradients are on."""
        return self._mean_loss(self.run(x), targets)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the module buffers that a replica on another device has copies of."""
        return sum(align(b.nbytes) for b in {id(b): b for _, b in self.named_buffers()}.values())

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The layers' module buffers by their names in the layer."""
        for layer in self._layers:
            yield from layer.named_buffers()

    def graph(
        self,
        x: Tensor,
        *,
        dx: bool,
        targets: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> Graph:
        """Run the layers on `x` with a graph; the last shard takes `targets` and adds the loss.

        `dx`: the gradient of x will be wanted. `scale`: by what the loss is multiplied.
        """
        leaf = _leaf(x, dx)
        return self._ended(leaf, self.run(leaf), targets, scale=scale)

    def forward_graph(
        self, x: Tensor, out: Tensor, *, dx: bool, saved: Tensor | None = None
    ) -> tuple[Spec, Graph]:
        """`forward` and `graph` in one; what the graph keeps is packed into `saved` (uint8)."""
        leaf = _leaf(x, dx)
        packing = self.packing(leaf, saved) if saved is not None else None
        with packing.hooks() if packing else nullcontext():
            y = self.run(leaf)
        spec = spec_of(y)
        view(out, spec).copy_(y.detach())
        return spec, self._ended(leaf, y, None, packing)

    def packing(self, x: Tensor, saved: Tensor | None) -> Packing:
        """For a forward on `x` with the bound parameters."""
        buffers = [buffer for layer in self._layers for buffer in layer.buffers()]
        return Packing(self._param_flat, x, saved, buffers)

    def _ended(
        self,
        leaf: Tensor,
        y: Tensor,
        targets: Tensor | None,
        packing: Packing | None = None,
        scale: Tensor | None = None,
    ) -> Graph:
        if targets is not None:
            loss = self._mean_loss(y, targets)
            scaled = loss if scale is None else loss * scale.squeeze()
            end = scaled if loss.requires_grad else None
            return Graph(leaf, end, loss.detach(), packing)
        # From the edge, not from y, so that y can go as soon as no saved tensor needs it.
        return Graph(leaf, get_gradient_edge(y) if y.requires_grad else None, None, packing)

    def backward(
        self, graph: Graph, *, dy: Tensor | None = None, dx: Tensor | None = None, add: bool = False
    ) -> Done:
        """Go back through `graph`, one of this shard; gradients go to the bound flat.

        Any shard but the last takes `dy`. `dx` (uint8) is written last and may share bytes with
        the input or `dy`. Without `add` the gradient flat is overwritten.
        """
        before = self._expect_gradients(add)
        if graph.end is not None:
            torch.autograd.backward(graph.end, dy)
        self._all_reached(before)
        spec = None
        if dx is not None:
            leaf = graph.leaf
            grad = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            spec = spec_of(grad)
            view(dx, spec).copy_(grad)
        return Done(graph.loss, spec)

    def move(self, graph: Graph, x: Tensor, saved: Tensor) -> None:
        """Let a packed graph go on with the bound parameters, with `x` and `saved` (uint8)."""
        if graph.packing is not None:
            graph.packing.move(self._param_flat, x, saved)
            graph.leaf.data = x.data

    def norms(self, flat: Tensor) -> Tensor:
        """The norm of each gradient in `flat`, in the order of the trainable parameters."""
        return norms_of(self._grads.at(flat))

    def update(
        self,
        param_flat: Tensor,
        grad_flat: Tensor,
        state_flat: Tensor | None,
        scaling: Scaling | None = None,
    ) -> None:
        """One optimizer step in place on these flats, on the host or on a device.

        `state_flat` None: the optimizer keeps no state beside its counters. `scaling`: what the
        norms of all gradients say about this step.
        """
        if not self.trainable:
            return
        self.bind_params(param_flat)
        self.bind_grads(grad_flat)
        if self._optimizer is None:
            self._optimizer = self._new_optimizer()
        self._optimizer.step(state_flat, scaling)

    def restore(
        self, saved: Mapping[str, Mapping[str, Any]], names: Mapping[int, str], state: Tensor
    ) -> None:
        """Optimizer state by parameter name, `names` by the id of the parameter, into `state`."""
        if not self.trainable:
            return
        self._optimizer = self._new_optimizer()
        own = [saved.get(names[id(parameter)], {}) for parameter in self.parameters]
        self._optimizer.restore(own, state)

    def _new_optimizer(self) -> ShardOptimizer:
        masters = self._masters if self._precision == "bf16" else None
        return ShardOptimizer(self.parameters, self._factory, masters)

    def add_grads(self, target: Tensor, other: Tensor) -> None:
        """Add the gradients in `other` to those in `target`, both flats of this shard."""
        for mine, theirs in zip(self._grads.at(target), self._grads.at(other), strict=True):
            mine += theirs

    def replica(self, where: torch.device = _CPU) -> "Shard":
        """The same layers as another shell, without parameters until some of `where` are bound.

        Module buffers are shared, or copied to a device that has memory of its own."""
        for parameter in self.parameters:
            if foreign_hooks(parameter):
                raise WorkloadError(
                    f"parameter {self._name(parameter)} has a hook, which would not see the "
                    "gradients of devices; put it into the layer or the optimizer"
                )
        memo: dict[int, object] = {id(p): _hollow(p, where) for p in self.parameters}
        memo |= {id(b): b.to(where) for layer in self._layers for b in layer.buffers()}
        try:
            layers = copy.deepcopy(self._layers, memo)
        except Exception as error:
            raise WorkloadError(f"a layer cannot be copied: {one_line(error)}") from error
        twin = Shard(
            layers,
            self._factory,
            self._loss,
            self._microbatches,
            self._precision,
            first=self._first,
        )
        twin._params, twin._grads = Views(self._params.specs), Views(self._grads.specs)
        return twin

    def _run(self, x: Tensor) -> Tensor:
        """The layers one after another on `x`, with a version counter of `x`'s own."""
        start = value = x if x.requires_grad else x.data
        if self._first and self._precision == "bf16" and value.is_floating_point():
            value = value.to(torch.bfloat16)
        version = start._version
        for layer in self._layers:
            try:
                value = layer(value)
            except PackError as error:
                raise PackError(f"layer {type(layer).__name__} {error}") from error
            if not isinstance(value, Tensor):
                raise WorkloadError(
                    f"layer {type(layer).__name__} returned {type(value).__name__}; "
                    "between layers there is exactly one tensor"
                )
        if start._version != version:
            raise WorkloadError(
                f"layer {type(self._layers[0]).__name__} changes its input in place; "
                "use inplace=False"
            )
        return value

    def _mean_loss(self, y: Tensor, targets: Tensor) -> Tensor:
        assert self._loss is not None, "only the last shard takes targets"
        with computing(self._precision, y.device):
            loss = self._loss(y, targets.data)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise WorkloadError("the loss function must return a scalar tensor")
        return loss / self._microbatches

    def _expect_gradients(self, add: bool) -> list[int]:
        """Say where gradients end; versions of the bound ones if they are added to, else -1."""
        if self._homes is None:
            self._homes = homes(self.trainable)
        before = []
        for parameter, home in zip(self.trainable, self._homes, strict=True):
            assert parameter.grad is not None, "gradients are bound before a backward"
            home.view = parameter.grad
            before.append(home.view._version if add else -1)
            if not add:
                parameter.grad = None
        return before

    def _all_reached(self, before: list[int]) -> None:
        """An ordinary loop would skip a parameter without gradient; here it would see zeros."""
        for parameter, version in zip(self.trainable, before, strict=True):
            if parameter.grad is None or parameter.grad._version == version:
                raise WorkloadError(
                    f"parameter {self._name(parameter)} got no gradient; "
                    "freeze it with requires_grad_(False) or use it"
                )

    def _name(self, parameter: nn.Parameter) -> str:
        return next(
            f"{name} of layer {index} of the shard"
            for index, layer in enumerate(self._layers)
            for name, p in layer.named_parameters()
            if p is parameter
        )


def _unique(layers: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Parameters in the order of `parameters()`, a shared one once."""
    return list({id(p): p for layer in layers for p in layer.parameters()}.values())


def _spec(parameter: nn.Parameter, low: bool = False) -> Spec:
    """How a parameter lies in a flat; `low`: once it is bf16."""
    spec = spec_of(parameter)
    floating = parameter.is_floating_point()
    return spec._replace(dtype=torch.bfloat16) if low and floating else spec


def _leaf(x: Tensor, dx: bool) -> Tensor:
    """`x` as the beginning of a graph, with a gradient of its own if `dx`."""
    return x.data.requires_grad_() if dx else x.data


def _hollow(parameter: nn.Parameter, where: torch.device) -> nn.Parameter:
    empty = torch.empty(0, dtype=parameter.dtype, device=where)
    return nn.Parameter(empty, requires_grad=parameter.requires_grad)
