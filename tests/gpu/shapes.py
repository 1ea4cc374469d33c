"""Sizes of the suite's models, and the settings of its workloads.

A workload function takes no arguments, so `Settings` travels as GANTRY_SUITE_* variables: set by
whoever starts a command, read when the function is called.
"""

import os
from dataclasses import asdict, dataclass, fields, replace

PREFIX = "GANTRY_SUITE_"
HOST_SHARE, HOST_SPARE = 0.85, 10 << 30  # of a host's memory, for models and the programs


@dataclass(frozen=True)
class Settings:
    """What a workload function reads. layers 0: as many as the size has; clip 0: no clipping.

    tiny: shapes of the same architecture that a laptop trains in milliseconds.
    """

    steps: int = 4
    batch: int = 8
    seq: int = 32
    precision: str = "fp32"
    clip: float = 0.0
    dropout: float = 0.0
    tied: int = 0
    layers: int = 0
    tiny: int = 0

    @staticmethod
    def read() -> "Settings":
        """From the environment; what is not set there has its default."""
        found = {f.name: os.environ.get(PREFIX + f.name.upper()) for f in fields(Settings)}
        kinds = {name: type(value) for name, value in asdict(Settings()).items()}
        return Settings(**{name: kinds[name](text) for name, text in found.items() if text})

    def environment(self) -> dict[str, str]:
        """The variables that `read` understands."""
        return {PREFIX + f.name.upper(): str(getattr(self, f.name)) for f in fields(Settings)}


@dataclass(frozen=True)
class Size:
    """Shapes. llama: RMSNorm, rotary positions, SwiGLU and no biases, instead of GPT-3's."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocabulary: int = 32_000
    llama: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of one block's matrices; norms and biases are a thousandth of them."""
        return 4 * self.width**2 + (3 if self.llama else 2) * self.width * self.hidden

    @property
    def end_parameters(self) -> int:
        """Of the embedding and the head."""
        return 2 * self.vocabulary * self.width


SIZES = {
    "tiny": Size(64, 4, 4, 256, vocabulary=512),
    "small": Size(512, 8, 8, 2048),
    "1b3": Size(2048, 24, 16, 8192),
    "7b": Size(4096, 32, 32, 11008, llama=True),
}


def shapes(name: str, settings: Settings) -> Size:
    """The size of this name; with settings.tiny a very small one of its architecture."""
    size = SIZES[name]
    return replace(SIZES["tiny"], llama=size.llama) if settings.tiny else size


def fitting_layers(size: Size, host_bytes: int) -> int:
    """How many of the size's layers a host holds with their whole training state in bf16.

    18 bytes for a parameter: bf16 value and gradient, fp32 master and two moments, and the value
    once more while the model is copied into the store. The rest is left to all else.
    """
    room = int(host_bytes * HOST_SHARE - HOST_SPARE) // 18 - size.end_parameters
    return max(1, min(size.layers, room // size.layer_parameters))
