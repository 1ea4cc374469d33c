"""Gradients that end in flat memory, without clearing it first; graphs that keep nothing for them.

Autograd gives a parameter without a gradient the tensor it computed, and adds to one that is there.
So a step's first microbatch, which has nothing to add to, hands over its gradients, and each is
copied as it comes, still in the caches, to where it belongs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from executor.errors import WorkloadError


class HooksRefused(WorkloadError):
    """A layer does not let others see what its graph keeps."""


class Home:
    """A hook that runs when a parameter's gradient is complete: its place is `view`."""

    def __init__(self) -> None:
        self.view = torch.empty(0)

    def __call__(self, parameter: Tensor) -> None:
        grad = parameter.grad
        if grad is None or grad is self.view:
            return
        if grad.layout == torch.strided:
            self.view.copy_(grad)
        else:
            self.view.zero_().add_(grad)
        parameter.grad = self.view


def homes(parameters: Sequence[nn.Parameter]) -> list[Home]:
    """The hook of each parameter, the same for all who ask."""
    return [_home(parameter) for parameter in parameters]


def foreign_hooks(parameter: nn.Parameter) -> bool:
    """True if somebody else wants to see the parameter's gradients."""
    after = parameter._post_accumulate_grad_hooks or {}
    return bool(parameter._backward_hooks) or any(not isinstance(h, Home) for h in after.values())


def _home(parameter: Tensor) -> Home:
    for hook in (parameter._post_accumulate_grad_hooks or {}).values():
        if isinstance(hook, Home):
            return hook
    home = Home()
    parameter.register_post_accumulate_grad_hook(home)  # type: ignore[no-untyped-call]
    return home


def give(parameter: Tensor, grad: Tensor) -> None:
    """Add a complete gradient to the parameter's as autograd would: to one that is there, or else
    it goes to the parameter's home."""
    with torch.no_grad():
        if parameter.grad is None:
            parameter.grad = grad
            _home(parameter)(parameter)
        else:
            parameter.grad += grad


class Beginning(torch.autograd.Function):
    """The identity where a graph begins. Its backward gives a gradient as it comes to `note`.

    A leaf would keep a copy of it, in the strides of its own value, and kernels further down go by
    strides. Of a leaf autocast also keeps what it was cast to, for all layers that cast it, and
    adds their gradients in low precision; between the layers of a plain loop no tensor is a leaf.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, note: Callable[[Tensor], None]) -> Tensor:
        ctx.note = note
        ctx.set_materialize_grads(False)
        return value.data

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None]:
        if grads[0] is not None:
            ctx.note(grads[0])
        return None, None


@contextmanager
def forgetting() -> Iterator[None]:
    """Let graphs keep nothing for their backward; HooksRefused by layers that forbid that."""
    with hooked(lambda tensor: None, _nothing):
        yield


@contextmanager
def hooked(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Let what graphs keep for their backward pass these; HooksRefused by layers that forbid it."""
    try:
        with saved_tensors_hooks(pack, unpack):
            yield
    except RuntimeError as error:
        if "saved tensor hooks" in str(error):  # of torch.func
            raise HooksRefused(str(error)) from error
        raise


def _nothing(note: None) -> Tensor:
    """Asked for by a layer that goes back through its own graph in its forward."""
    raise HooksRefused("goes back through its own graph in its forward")
