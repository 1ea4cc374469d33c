"""Links between devices that are near each other or far, and what boundaries take over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from profiles.schema import Rate


@dataclass(frozen=True)
class Hops:
    """Devices in groups, behind one switch or in one machine.

    groups: of every device. near: over links within a group; far: between groups.
    """

    groups: tuple[int, ...]
    near: Rate
    far: Rate

    def us(self, sender: int, receiver: int, count: int) -> int:
        """The time of so many bytes from one device to another."""
        rate = self.near if self.groups[sender] == self.groups[receiver] else self.far
        return rate.latency_us + -(-count * 1_000_000 // rate.bytes_per_s)

    def boundaries(
        self, stages: Sequence[Sequence[int]], input_bytes: Sequence[int]
    ) -> list[list[int]]:
        """Between every two stages, given by their devices, the times of every layer's input, over
        the slowest link that any of their replicas may use. For `cut`."""
        return [
            [max(self.us(*pair, count) for pair in product(*both)) for count in input_bytes]
            for both in pairwise(stages)
        ]
