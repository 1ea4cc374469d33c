"""A file of Harmony's profiles: times and memory of packs of layers, by microbatch size."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np


class Profile:
    """The model, the GPUs and the rates of a file, as prefix sums over layers.

    Times are µs, as floats: between microbatch sizes that were profiled, the rule interpolates.
    """

    def __init__(self, file: dict[str, Any]) -> None:
        constants = file["constants"]
        self.layers = len(file["W_bytes"])
        self.minibatch: int = constants["minibatch"]
        self.gpus: int = constants["gpus"]
        self.cap: int = constants["memory_cap_bytes"]
        self.delete_us: int = constants["del_us_per_task"]
        self.swap_rate: float = constants["bw_swap_bytes_per_s"] / 1e6  # all GPUs together, per µs
        self.p2p_rate: float = constants["bw_p2p_bytes_per_s"] / 1e6
        self.message_rate: float = constants["bw_msg_bytes_per_s"] / 1e6 / 2  # half-duplex
        self.inputs: list[int] = [*file["X_bytes_per_sample"], 0]  # bytes before each layer
        self.update_us = _sums(file["upd_cpu_us"])
        self.weights = _sums(w + b for w, b in zip(file["W_bytes"], file["B_bytes"], strict=True))
        self._tables = {
            name: ([int(size) for size in file[name]], np.array(list(file[name].values())))
            for name in ("fwd_us", "bwd_us", "mem_fwd_bytes", "mem_bwd_bytes")
        }
        self.forward_us = lru_cache(lambda size: _sums(self._at("fwd_us", size)))
        self.backward_us = lru_cache(lambda size: _sums(self._at("bwd_us", size)))
        self._memory = lru_cache(self._pack_memory)

    def most(self, backward: bool) -> int:
        """The largest microbatch that was profiled."""
        names = ("bwd_us", "mem_bwd_bytes") if backward else ("fwd_us", "mem_fwd_bytes")
        return min(self.minibatch, *(self._tables[name][0][-1] for name in names))

    def fits(self, backward: bool, size: int, first: int, end: int) -> bool:
        """The layers of a pack, measured alone, fit together, inner boundaries counted once."""
        if size > self.most(backward):
            return False
        sums = self._memory(backward, size)
        return sums[end] - sums[first] + size * self.inputs[first] <= self.cap

    def _pack_memory(self, backward: bool, size: int) -> list[float]:
        """Sums of memory without inputs."""
        alone = self._at("mem_bwd_bytes" if backward else "mem_fwd_bytes", size)
        return _sums(int(a) - size * x for a, x in zip(alone, self.inputs, strict=False))

    def _at(self, name: str, size: int) -> list[float]:
        """Values of every layer at a microbatch size."""
        sizes, values = self._tables[name]
        return [float(np.interp(size, sizes, column)) for column in values.T]


def _sums(values: Iterable[float]) -> list[float]:
    return [0, *accumulate(values)]
