"""One round of a strategy: its ops, their hazards, order, times and memory."""

from planner.rounds.evaluation import SUFFIX, evaluating, least_us, share_us
from planner.rounds.host_bytes import PLENTY, Store, fitted, least_bytes, store
from planner.rounds.hydra import HydraStrategy
from planner.rounds.round import Round

__all__ = [
    "PLENTY",
    "SUFFIX",
    "HydraStrategy",
    "Round",
    "Store",
    "evaluating",
    "fitted",
    "least_bytes",
    "least_us",
    "share_us",
    "store",
]
