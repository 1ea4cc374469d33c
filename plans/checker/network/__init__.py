"""Rule 10 of the checker: what several nodes ask for."""

from plans.checker.network.ledger import ledger
from plans.checker.network.shape import nodes_shape
from plans.checker.network.states import states_found
from plans.checker.network.stores import (
    Nodes,
    nodes_kept,
    on_nodes,
    pattern,
    program_nodes,
    spread,
)

__all__ = [
    "Nodes",
    "ledger",
    "nodes_kept",
    "nodes_shape",
    "on_nodes",
    "pattern",
    "program_nodes",
    "spread",
    "states_found",
]
