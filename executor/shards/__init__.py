"""Shards: layers and their state, in memory that the plan moves; the host store."""

from executor.shards.checks import Saved, base_of, frozen_in
from executor.shards.forward import DRAWS, Modes
from executor.shards.graphs import Graph
from executor.shards.halves import backward_input, backward_weights
from executor.shards.host_room import Shared
from executor.shards.parameters import NONE, Absent
from executor.shards.place import Place, places_of
from executor.shards.replicas import Replicas
from executor.shards.shard import Shard
from executor.shards.store import Cutter, HostStore, HostTask
from executor.shards.tied import Tie, joined, tie_bytes, ties
