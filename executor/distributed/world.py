"""The processes of a run, as torchrun has started them."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from executor.devices import expect_nodes
from executor.errors import UsageError
from plans.order import node_count
from plans.schema import Plan


@dataclass(frozen=True)
class World:
    """Process `rank` of `size` on so many nodes, each of which has as many processes in a row."""

    rank: int
    size: int
    nodes: int = 1

    @property
    def node(self) -> int:
        """The node of this process."""
        return self.rank // (self.size // self.nodes)

    def first(self, node: int) -> int:
        """The first process of a node, which makes its host store."""
        return node * (self.size // self.nodes)

    @property
    def mates(self) -> range:
        """The processes of this process' node."""
        return range(self.first(self.node), self.first(self.node + 1))

    def of(self, plan: Plan) -> "World":
        """The first of these processes, as many as a plan has devices for."""
        nodes = node_count(plan)
        local = min(self.size // self.nodes, len(plan.devices) // nodes)
        return World(self.rank, nodes * local, nodes)

    def ranks(self, plan: Plan) -> Sequence[int]:
        """The process that has each device of a plan: those of a node have its devices in their
        order, each as many. UsageError where devices or nodes are not as many as that takes."""
        expect_nodes(plan, self.nodes)
        local = self.size // self.nodes
        ranks = [0] * len(plan.devices)
        for node in range(self.nodes):
            own = [number for number, one in enumerate(plan.devices) if one.node == node]
            if len(own) % local:
                of = (
                    f"node {node}'s {len(own)} devices" if self.nodes > 1 else f"{len(own)} devices"
                )
                least = -(-len(own) // local) * local
                raise UsageError(
                    f"{local} processes cannot share the plan's {of} equally; start torchrun with "
                    f"a --nproc-per-node that divides {len(own)}, or build for "
                    + (f"--nodes {self.nodes}x{least}" if self.nodes > 1 else f"--devices {least}")
                )
            share = len(own) // local
            for place, number in enumerate(own):
                ranks[number] = self.first(node) + place // share
        return ranks


def siblings() -> dict[int, int]:
    """The processes that the torchrun of this one has started, by rank."""
    found = {}
    for children in Path(f"/proc/{os.getppid()}/task").glob("*/children"):
        for pid in children.read_text().split():
            with suppress(OSError):
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if entry.startswith(b"RANK="):
                        found[int(entry[5:])] = int(pid)
    return found


class Mates:
    """Other processes of this node, by rank the number that the system has for each."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._pids = pids
        self._stopped: dict[int, float] = {}

    def lost(self, limit_s: float) -> dict[int, str]:
        """Reasons by process that has ended, or that somebody has stopped for so long: it is
        killed, since it does not go on by itself and torchrun waits for it."""
        found, now = {}, time.monotonic()
        for rank, pid in self._pids.items():
            state = _state(pid)
            since = self._stopped.setdefault(rank, now) if state == "T" else now
            if state != "T":
                self._stopped.pop(rank, None)
            if state in ("", "Z", "X"):
                found[rank] = f"process {rank} is gone, it was killed or crashed: see its output"
            elif now - since > limit_s:
                found[rank] = (
                    f"process {rank} has been stopped for {now - since:.1f} s, and is killed"
                )
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        return found


def _state(pid: int) -> str:
    """The letter that the system has for a process; empty where there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def world(environ: Mapping[str, str] = os.environ) -> World | None:
    """The processes that torchrun has started, None for one alone. UsageError where nodes do not
    have equally many."""
    size = int(environ.get("WORLD_SIZE", "1"))
    if "TORCHELASTIC_RUN_ID" not in environ or size == 1:
        return None
    nodes = int(environ.get("GROUP_WORLD_SIZE", "1"))
    local = int(environ.get("LOCAL_WORLD_SIZE", size))
    if local * nodes != size:
        raise UsageError(
            f"node {environ.get('GROUP_RANK')} has {local} of {size} processes on {nodes} nodes; "
            "start torchrun with the same --nproc-per-node on all of them"
        )
    return World(int(environ["RANK"]), size, nodes)


def machine_id() -> str:
    """The same in processes that have the same clock, and nowhere else."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
