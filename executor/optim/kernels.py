"""The kernels of `onepass.c`, called with tensors; trusted only where they give torch's bits.

The source is compiled for this CPU at its first use and kept in `$XDG_CACHE_HOME/gantry` or
`~/.cache/gantry`. The library's name is a hash of all that went into it, so that a new source,
compiler or CPU makes a new one.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from executor.numerics import same

SOURCE = Path(__file__).with_name("onepass.c")
SERIAL_BELOW = 32768
"""Elements below which waking threads takes longer than the step."""

_FLAGS = "-std=c11 -O3 -march=native -ffp-contract=off -fno-math-errno -fno-trapping-math -fopenmp"
_POINTER, _COUNT, _REAL, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
_ARGUMENTS = [_POINTER] * 5 + [_COUNT] + [_REAL] * 5 + [_INT] + [_REAL] * 2 + [_INT] * 4
KINDS: tuple[type[Optimizer], ...] = (Adam, AdamW)
_lock = threading.Lock()

# Choices of torch's compiler, as onepass.c explains them: width, whole_kept, rest_kept.
# AVX2's 8 floats come first: torch has no AVX-512 version of these kernels.
Rounding = tuple[int, bool, bool]
_ROUNDINGS: list[Rounding] = [
    (width, whole, rest)
    for whole, rest in ((False, True), (True, False), (False, False), (True, True))
    for width in ((8, 16, 4) if whole != rest else (8,))
]


class Kernels(NamedTuple):
    """The library, and the rounding of each optimizer whose bits it can give."""

    library: ctypes.CDLL
    roundings: dict[type[Optimizer], Rounding]

    def update(
        self,
        kind: type[Optimizer],
        group: dict[str, Any],
        step: float,
        grad: Tensor,
        master: Tensor,
        moments: list[Tensor],
        param: Tensor | None,
        scale: float,
    ) -> None:
        """Step number `step`, counted from 1, of one parameter with its group's settings.

        `grad` and `param` are bf16, `master` and `moments` (exp_avg, exp_avg_sq) fp32, all
        contiguous, on the CPU and of one size. `param` None: only the master is kept. The gradient
        is multiplied by `scale` in fp32.
        """
        values = [grad, master, *moments, param]
        rates = group["lr"], *group["betas"], group["eps"], group["weight_decay"]
        wrote_nan = self.library.gantry_adam(
            *(None if value is None else value.data_ptr() for value in values),
            master.numel(),
            *map(float, rates),
            group.get("decoupled_weight_decay", kind is AdamW),
            step,
            scale,
            *self.roundings[kind],
            1 if master.numel() < SERIAL_BELOW else torch.get_num_threads(),
        )
        if wrote_nan and param is not None:
            param.copy_(master)  # the bits of a NaN are torch's choice


def find() -> Kernels | str:
    """The kernels, made and compared at the first call; or why there are none, in one line."""
    with _lock:
        return _found()


@functools.cache
def _found() -> Kernels | str:
    try:
        library = ctypes.CDLL(str(_compiled(SOURCE)))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return " ".join(str(error).split())
    library.gantry_adam.argtypes = _ARGUMENTS
    roundings = {}
    for kind in KINDS:
        trials = (r for r in _ROUNDINGS if _gives_torchs_bits(Kernels(library, {kind: r}), kind))
        if found := next(trials, None):
            roundings[kind] = found
    if not roundings:
        return f"the kernels do not give the bits of torch {torch.__version__} on this CPU"
    return Kernels(library, roundings)


@torch.no_grad()
def _gives_torchs_bits(kernels: Kernels, kind: type[Optimizer]) -> bool:
    """True if three steps leave masters, state and parameters as torch does."""
    source = torch.Generator("cpu").manual_seed(0)
    options: tuple[dict[str, Any], ...] = (
        {"weight_decay": 0.1},
        {"weight_decay": 0.0, "betas": (0.3, 0.99)},
    )
    sizes = (1023, *[15] * 8)  # whatever the width, many elements are left over
    trials = product(options, (True, False), sizes)
    return all(_trial(kernels, kind, one, size, source, writes) for one, writes, size in trials)


def _trial(
    kernels: Kernels,
    kind: type[Optimizer],
    options: dict[str, Any],
    size: int,
    source: torch.Generator,
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
        kernels.update(kind, theirs.param_groups[0], step, grad, master, moments, param, scale)
        twin.grad = grad.float() * scale
        theirs.step()
    kept = theirs.state[twin]
    low = twin.bfloat16() if writes else None
    return same([master, *moments, param], [twin, kept["exp_avg"], kept["exp_avg_sq"], low])


def _compiled(source: Path) -> Path:
    """The library made from `source`, from the cache or put there; by rename, so that it is whole
    or absent. OSError, RuntimeError or SubprocessError when it cannot be made."""
    compiler = _compiler()
    version = subprocess.run([*compiler, "--version"], capture_output=True, timeout=60, check=True)
    made_from = [source.read_bytes(), version.stdout, _cpu(), _FLAGS.encode()]
    name = hashlib.sha256(b"\0".join(made_from)).hexdigest()[:32]
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    target = Path(root) / "gantry" / f"{source.stem}-{name}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        files = ["-o", str(made), str(source)]
        command = [*compiler, *_FLAGS.split(), "-fPIC", "-shared", *files, "-lm"]
        done = subprocess.run(command, capture_output=True, timeout=120)
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-400:]
            raise RuntimeError(f"{compiler[0]} failed with {done.returncode}: {said}")
        made.replace(target)
    return target


def _compiler() -> list[str]:
    """The C compiler's command: $CC, or the first of the usual names."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    names = ("cc", "gcc", "clang")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        raise RuntimeError(
            f"no C compiler: none of {', '.join(names)} is on PATH and CC is not set"
        )
    return [path]


def _cpu() -> bytes:
    """The machine's instruction set, as text: code for one CPU may not run on another."""
    about = [platform.machine(), platform.processor()]
    info = Path("/proc/cpuinfo")
    if info.exists():
        first = info.read_text().split("\n\n")[0].splitlines()
        about += [line for line in first if line.startswith(("model name", "flags", "Features"))]
    return "\n".join(about).encode()
