"""The work of a stage of a pipeline, and how its replicas share out a task's microbatches."""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple


class Work(NamedTuple):
    """Times on one kind of device, of a layer or of all layers of a stage.

    time: forward and backward of a microbatch. once: in a round, whatever the microbatches.
    hop: of a microbatch's boundary, over the link to another device; of a layer its input's, of a
    stage what one of its devices sends: its output and the gradient of its input.
    exchange: of the stage's parameters over that link; replicas send gradients to their owners, and
    owners the new parameters back.
    """

    time: int
    once: int = 0
    hop: int = 0
    exchange: int = 0

    def load(self, microbatches: int, replicas: int = 1) -> int:
        """The time for which a replica computes or sends in a round, whichever is longer.

        Each replica owns an equal part of the parameters. One without microbatches does nothing.
        """
        if not microbatches:
            return 0
        owned = -(-2 * (replicas - 1) * self.exchange // replicas)
        return max(microbatches * self.time + self.once, microbatches * self.hop + owned)


def dealt(microbatches: int, replicas: Sequence[Work]) -> list[int]:
    """The replica of every microbatch: each goes to the one that is done with it first.

    That makes the longest of their loads as short as it can be.
    """
    count = len(replicas)
    counts = [0] * count
    queue = [(work.load(1, count), index) for index, work in enumerate(replicas)]
    heapify(queue)
    turns = []
    for _ in range(microbatches):
        _, index = queue[0]
        turns.append(index)
        counts[index] += 1
        heapreplace(queue, (replicas[index].load(counts[index] + 1, count), index))
    return turns


def shared_out(microbatches: int, replicas: Sequence[Work]) -> tuple[int, ...]:
    """The number of microbatches of each replica."""
    turns = dealt(microbatches, replicas)
    return tuple(turns.count(index) for index in range(len(replicas)))
