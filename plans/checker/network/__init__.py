"""Rule 10 of the checker: what several nodes ask for."""

from plans.checker.network.ledger import ledger
from plans.checker.network.shape import carried_bytes, nodes_shape, transfers_shape
from plans.checker.network.states import states_found
from plans.checker.network.stores import MOST_WAYS, Nodes, Ways, on_nodes, spread, ways, ways_few
from plans.checker.network.times import transfer_order, transfer_times

__all__ = [
    "MOST_WAYS",
    "Nodes",
    "Ways",
    "carried_bytes",
    "ledger",
    "nodes_shape",
    "on_nodes",
    "spread",
    "states_found",
    "transfer_order",
    "transfer_times",
    "transfers_shape",
    "ways",
    "ways_few",
]
