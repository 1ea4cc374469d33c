"""Shards: layers and their state, in memory that the plan moves; the host store."""

from executor.shards.checks import Saved
from executor.shards.files import StateFile, Tick, open_files, remove
from executor.shards.forward import DRAWS, Modes, modules_of
from executor.shards.graphs import Graph, Made
from executor.shards.parameters import NONE, Absent
from executor.shards.place import Place
from executor.shards.replicas import Replicas
from executor.shards.shard import Shard
from executor.shards.store import Cutter, HostStore, HostTask
from executor.shards.tied import Tie, tie_bytes, ties

__all__ = [
    "DRAWS",
    "NONE",
    "Absent",
    "Cutter",
    "Graph",
    "HostStore",
    "HostTask",
    "Made",
    "Modes",
    "Place",
    "Replicas",
    "Saved",
    "Shard",
    "StateFile",
    "Tick",
    "Tie",
    "modules_of",
    "open_files",
    "remove",
    "tie_bytes",
    "ties",
]
