"""What a workload could do to be faster with the same code: one line, told when it is profiled."""

from collections.abc import Sequence

from torch.optim import Adagrad, Adam, AdamW, Optimizer

from profiles.schema import Layer
from profiles.units import show_us

_FUSED = (Adam, AdamW, Adagrad)  # SGD gains little: it does little per byte
_LEAST_US = 1_000
_SHARE = 10  # one part in so many of what a step computes is worth a line


def hint(task: str, optimizer: Optimizer, layers: Sequence[Layer]) -> str:
    """How updates on the host would be faster; empty where they take no time to speak of."""
    plain = any(not group.get("fused") for group in optimizer.param_groups)
    if type(optimizer) not in _FUSED or not plain:
        return ""
    update = sum(layer.update_host.median_us for layer in layers)
    compute = sum(layer.costs[-1].recompute_backward.median_us for layer in layers)
    if update < _LEAST_US or update * _SHARE < compute:
        return ""
    name = type(optimizer).__name__
    return (
        f"hint: task {task}: its updates take {show_us(update)} on the host beside "
        f"{show_us(compute)} of forward and backward; {name}(..., fused=True) needs about a third"
    )
