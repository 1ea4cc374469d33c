"""A task's shards on the devices that compute them, with the latest values of module buffers."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from executor.errors import RunError
from executor.shards.place import Place
from executor.shards.shard import Shard


class Replicas:
    """One shell for each shard and device, made when it is first asked for.

    A shard whose forward changes module buffers runs its microbatches in turn on one device.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._made: dict[tuple[int, int], Shard] = {}
        self._last: dict[int, tuple[int, Place]] = {}  # microbatch, of shards that change buffers
        self._learning = threading.Lock()

    def on(self, shard: int, place: Place) -> Shard:
        """The shell that computes this shard on this device."""
        key = shard, place.number
        if key not in self._made:
            device = place.device
            apart = device.spec.kind != "cpu"
            self._made[key] = self._shards[shard].replica(device.where, apart=apart)
        return self._made[key]

    @contextmanager
    def turn(self, shard: int, microbatch: int, place: Place) -> Iterator[None]:
        """Around a forward that counts. RunError if it changes buffers, and not in the order of the
        plain loop; as long as it is not known whether it does, one device at a time finds out."""
        buffers = self._made[shard, place.number].buffers

        def check() -> None:
            early = microbatch and self._last.get(shard) != (microbatch - 1, place)
            if buffers.changing and early:
                raise RunError(
                    f"changes its buffer {buffers.changing[0].name} in each forward, so one device "
                    "has to run its microbatches in turn, and the plan has them elsewhere or in "
                    "another order; profile and build again"
                )

        with self._learning if buffers.found.numbers is None else nullcontext():
            if known := buffers.found.numbers is not None:
                check()  # before it changes what a graph on another device may need
            yield
        if not known:
            check()
        if buffers.changing:
            self._last[shard] = microbatch, place

    def settle(self) -> None:
        """Bring what forwards have changed on a device to the model, and to all other replicas."""
        for number, (_, place) in self._last.items():
            latest, host = self._made[number, place.number], self._shards[number]
            host.buffers.copy_from(latest.buffers)
            for (shard, _), other in self._made.items():
                if shard == number and other is not latest:
                    other.buffers.copy_from(host.buffers)
        self._last.clear()

    def forget(self, shard: int) -> None:
        """Let go of the shells of a shard, which is the latest now."""
        self._made = {key: shell for key, shell in self._made.items() if key[0] != shard}
        self._last.pop(shard, None)

    def clear(self) -> None:
        """Let go of all shells."""
        self._made.clear()
