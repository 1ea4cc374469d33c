"""The result of a run: trained models, losses, and measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from executor.records.checkpoint import own
from executor.records.exporting import export
from executor.shards import HostStore
from plans.runlog import DropRecord, StopRecord


@dataclass(frozen=True)
class Result:
    """losses: each task's, by step; ended_us: when the latest of them was known.
    store: trained models and optimizer states. dropped: tasks that failed, their states undefined.
    stopped: tasks that a rule ended, their states whole. Per device: peak_bytes, slab and
    transients with live graphs; late_allocations, how often torch asked the device for memory after
    the first rounds of a segment, which should be never. val_losses, metrics: of each task's
    evaluations, by the steps done. warnings: the first of each task whose loss was no number.
    troubles: a line for each file that could not be written at the end.
    """

    losses: dict[str, list[float]]
    ended_us: dict[str, int]
    store: HostStore
    actual_us: int
    peak_bytes: tuple[int, ...]
    host_bytes: int
    late_allocations: tuple[int, ...]
    dropped: dict[str, DropRecord] = field(default_factory=dict)
    stopped: dict[str, StopRecord] = field(default_factory=dict)
    val_losses: dict[str, dict[int, float]] = field(default_factory=dict)
    metrics: dict[str, dict[int, Mapping[str, float]]] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()

    def model(self, task: str) -> nn.Module:
        """The trained model, its parameters views of the host store. Parameters that the store
        does not hold are cast from their masters now.

        Where tasks took turns in the store, or came there from other nodes, the model is valid
        until another one is asked for.
        """
        return self.store.at_hand(task).whole()

    def save(self, task: str, folder: str | Path) -> None:
        """Write the trained model as a folder that other libraries read, see
        `records/exporting.py`."""
        export(self.model(task), Path(folder))

    def optimizer_state(self, task: str) -> dict[str, dict[str, Any]]:
        """Each parameter's optimizer state by the model's own parameter name."""
        state = self.store.at_hand(task).optimizer_state()
        return {n: {k: own(v) for k, v in kept.items()} for n, kept in state.items()}
