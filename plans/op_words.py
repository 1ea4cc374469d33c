"""An op in words."""

from plans.ops import COPIES, OpKind
from plans.schema import Op, Plan

_WORDS = {
    "F": "forward of shard {0}, microbatch {1}",
    "B": "backward of shard {0}, microbatch {1}",
    "I": "gradient of the input of shard {0}, microbatch {1}",
    "I recompute": "gradient of the input of shard {0}, microbatch {1}, after its forward again",
    "I last": "forward, loss and gradient of the input of shard {0}, microbatch {1}",
    "W": "gradients of the parameters of shard {0}, microbatch {1}",
    "B recompute": "backward of shard {0}, microbatch {1}, after its forward again",
    "B last": "forward, loss and backward of shard {0}, microbatch {1}",
    "U compute": "update of shard {0} on the device",
    "U host": "update of shard {0} on the host",
    "N": "norms of the gradients of shard {0}",
    "R": "sum of gradients of shard {0}",
    "P": "prefetch",
    "S": "spill",
    "X": "send",
    "param": "parameters of shard {0}",
    "state": "optimizer state of shard {0}",
    "grad": "gradients of shard {0}",
    "x": "boundary before shard {0}, microbatch {1}",
    "dx": "gradient of the boundary before shard {0}, microbatch {1}",
    "saved": "activations of shard {0}, microbatch {1}",
    "batch": "batch, microbatch {1}",
    "norm": "norms of the gradients",
    "tie": "gradients of tied layers down to shard {0}, microbatch {1}",
}
_ROLES = {"y": "x", "dy": "dx", "a": "saved", "s": "shard {0}"}  # of outputs, and by item


def meaning(plan: Plan, op: Op) -> str:
    """An op in words: `backward of shard 3, microbatch 2, after its forward again`."""
    name = op.name
    key = str(name.kind)
    if name.kind in (OpKind.BACKWARD, OpKind.INPUT_GRAD):
        shards = plan.task(name.task).shards
        if name.number == len(shards) - 1:
            key += " last"
        elif shards[name.number].activations == "recompute":
            key += " recompute"
    elif name.kind is OpKind.UPDATE:
        key += f" {op.queue.lane}"
    words = _WORDS[key]
    if name.kind in COPIES:  # a copy is named by the role of what it writes
        role = next(iter(op.writes), name.item)
        role = _ROLES.get(role, role)
        words += " " + _WORDS.get(role, role)
    return words.format(name.number, name.index)
