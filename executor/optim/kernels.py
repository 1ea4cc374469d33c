"""The kernels of `onepass.c`, called with tensors; trusted only where they give torch's bits."""

import ctypes
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from executor.numerics import same
from executor.optim import compile

SOURCE = Path(__file__).with_name("onepass.c")
SERIAL_BELOW = 32768
"""Elements below which waking threads takes longer than the step."""

_POINTER, _COUNT, _REAL, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
_ARGUMENTS = [_POINTER] * 5 + [_COUNT] + [_REAL] * 5 + [_INT] + [_REAL] * 2 + [_INT] * 4
KINDS: tuple[type[Optimizer], ...] = (Adam, AdamW)
_lock = threading.Lock()


class Rounding(NamedTuple):
    """Choices of torch's compiler, as onepass.c explains them."""

    width: int
    whole_kept: bool
    rest_kept: bool


# AVX2's 8 floats come first: torch has no AVX-512 version of these kernels.
_ROUNDINGS = [
    Rounding(width, whole, rest)
    for whole, rest in ((False, True), (True, False), (False, False), (True, True))
    for width in ((8, 16, 4) if whole != rest else (8,))
]


class Scalars(NamedTuple):
    """In the order of gantry_adam; `step` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool
    step: float


class Kernels(NamedTuple):
    """The library, and how each optimizer rounds whose bits it can give."""

    library: ctypes.CDLL
    roundings: dict[type[Optimizer], Rounding]

    def update(
        self,
        kind: type[Optimizer],
        grad: Tensor,
        master: Tensor,
        state: list[Tensor],
        param: Tensor | None,
        scalars: Scalars,
        scale: float,
    ) -> None:
        """One step of one parameter.

        `grad` and `param` are bf16, `master` and `state` fp32, all contiguous, on the CPU and of
        one size. `state` is [exp_avg, exp_avg_sq]. `param` None: only the master is kept. The
        gradient is multiplied by `scale` in fp32.
        """
        values = [grad, master, *state, param]
        wrote_nan = self.library.gantry_adam(
            *(None if value is None else value.data_ptr() for value in values),
            master.numel(),
            *scalars,
            scale,
            *self.roundings[kind],
            1 if master.numel() < SERIAL_BELOW else torch.get_num_threads(),
        )
        if wrote_nan and param is not None:
            param.copy_(master)  # which bits a NaN gets is torch's affair


def find() -> Kernels | str:
    """The kernels, made and compared at the first call; or why there are none, in one line."""
    with _lock:
        return _found()


@functools.cache
def _found() -> Kernels | str:
    try:
        library = compile.load(SOURCE)
    except compile.Unavailable as error:
        return str(error)
    library.gantry_adam.argtypes = _ARGUMENTS
    roundings = {}
    for kind in KINDS:
        for rounding in _ROUNDINGS:
            if _gives_torchs_bits(Kernels(library, {kind: rounding}), kind):
                roundings[kind] = rounding
                break
    if not roundings:
        return f"the kernels do not give the bits of torch {torch.__version__} on this CPU"
    return Kernels(library, roundings)


@torch.no_grad()
def _gives_torchs_bits(kernels: Kernels, kind: type[Optimizer]) -> bool:
    """True if three steps leave masters, state and parameters as torch does."""
    source = torch.Generator("cpu").manual_seed(0)
    sizes = (1023, *[15] * 8)  # whatever the width, many elements are left over
    return all(
        _trial(kernels, kind, options, size, source, writes=writes)
        for options in ({"weight_decay": 0.1}, {"weight_decay": 0.0, "betas": (0.3, 0.99)})
        for writes in (True, False)
        for size in sizes
    )


def _trial(
    kernels: Kernels,
    kind: type[Optimizer],
    options: dict[str, Any],
    size: int,
    source: torch.Generator,
    *,
    writes: bool,
) -> bool:
    master = torch.randn(size, generator=source, device="cpu", dtype=torch.float32)
    param = torch.empty_like(master, dtype=torch.bfloat16) if writes else None
    twin = master.clone()
    make: Callable[..., Any] = kind
    theirs = make([twin], lr=0.01, fused=True, **options)
    moments = [torch.zeros_like(master) for _ in range(2)]
    for step, scale in enumerate((1.0, 0.37, 1.0), start=1):
        grad = torch.randn(size, generator=source, device="cpu", dtype=torch.float32).bfloat16()
        scalars = scalars_of(kind, theirs.param_groups[0], step)
        kernels.update(kind, grad, master, moments, param, scalars, scale)
        twin.grad = grad.float() * scale
        theirs.step()
    kept = theirs.state[twin]
    low = twin.bfloat16() if writes else None
    return same([master, *moments, param], [twin, kept["exp_avg"], kept["exp_avg_sq"], low])


def scalars_of(kind: type[Optimizer], group: dict[str, Any], step: float) -> Scalars:
    """The scalars of a group's update number `step`, counted from 1."""
    beta1, beta2 = map(float, group["betas"])
    decoupled = group.get("decoupled_weight_decay", kind is AdamW)
    rates = float(group["lr"]), beta1, beta2, float(group["eps"]), float(group["weight_decay"])
    return Scalars(*rates, decoupled, step)
