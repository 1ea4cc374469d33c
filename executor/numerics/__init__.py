"""Exact bits: flat memory, packing, random numbers, module buffers, precision."""

from executor.numerics.buffers import Buffers, Found, Snapshot
from executor.numerics.dispatch_mode import OpMode
from executor.numerics.flat import Cast, Spec, Views, same, spec_of
from executor.numerics.gradients import Home, HooksRefused, foreign_hooks, forgetting, give, homes
from executor.numerics.meter import CpuMeter, MemoryMeter
from executor.numerics.packing import PackError, Packing
from executor.numerics.pieces import Pieces
from executor.numerics.precision import (
    AUTOCAST,
    LossScale,
    Norms,
    computing,
    needs_norms,
    norm_bytes,
    norms_of,
)
from executor.numerics.rng import (
    CpuSource,
    DrawError,
    Guard,
    LentGenerator,
    OwnRandomness,
    RandomMode,
    Row,
    Source,
    TaskRng,
    no_draws,
)
from executor.numerics.same_draws import SameDraws
from executor.numerics.splitting import Later, Root, input_gradients, parameter_gradients
from executor.numerics.values import (
    Grads,
    Layout,
    TensorPlace,
    Value,
    detached,
    hold,
    mapped,
    read_grads,
    tensors_of,
    write_grads,
)
