"""A model taken apart into layers that run one after another."""

from executor.cutting.called import arguments, call, through
from executor.cutting.chain import Chain, chain_of, first, name_of, run
from executor.cutting.gap import Gap, device_of
from executor.cutting.parts import Fixed, Unsupported, packed, unpacked
from executor.cutting.pieces import hold
from executor.cutting.planned import planned
from executor.cutting.recomputing import TOLD, as_ever, left_out
from executor.cutting.record import changed, shown
from executor.cutting.same import difference, isolated, lowered, lowered_inputs, trace_twice

__all__ = [
    "TOLD",
    "Chain",
    "Fixed",
    "Gap",
    "Unsupported",
    "arguments",
    "as_ever",
    "call",
    "chain_of",
    "changed",
    "device_of",
    "difference",
    "first",
    "hold",
    "isolated",
    "left_out",
    "lowered",
    "lowered_inputs",
    "name_of",
    "packed",
    "planned",
    "run",
    "shown",
    "through",
    "trace_twice",
    "unpacked",
]
