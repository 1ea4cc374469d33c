"""The processes of a run, as torchrun has started them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from executor.errors import UsageError


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, each of which has as many neighbouring devices of a plan."""

    rank: int
    size: int

    def share(self, devices: int) -> int:
        """The devices of each process; UsageError where they do not divide."""
        if devices % self.size:
            raise UsageError(
                f"{self.size} processes cannot share the plan's {devices} devices equally; start "
                f"torchrun with a --nproc-per-node that divides {devices}, or build for "
                f"--devices {-(-devices // self.size) * self.size}"
            )
        return devices // self.size

    def rank_of(self, device: int, devices: int) -> int:
        """The process that has a device of so many."""
        return device // self.share(devices)


def world(environ: Mapping[str, str] = os.environ) -> World | None:
    """The processes that torchrun has started, None for one alone. UsageError where they are on
    several machines."""
    size = int(environ.get("WORLD_SIZE", "1"))
    if "TORCHELASTIC_RUN_ID" not in environ or size == 1:
        return None
    if int(environ.get("LOCAL_WORLD_SIZE", size)) != size:
        raise UsageError("a run on several machines is not possible yet; start torchrun on one")
    return World(int(environ["RANK"]), size)
