"""Checkpoints: ordinary state dicts by the user's own parameter names."""

import os
from pathlib import Path

import torch

from executor.errors import UsageError
from executor.store import HostTask


def make_folder(folder: Path) -> None:
    """Find out before the run, not after it, that nothing could be saved there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None


def save(folder: Path, task: HostTask, step: int) -> Path:
    """Write `<folder>/<task>.pt` whole or not at all; the task's state must be settled.

    The folder must exist. The file holds {"model": state_dict, "optimizer": {parameter name:
    state}, "step": steps done}.
    """
    target = folder / f"{task.plan.name}.pt"
    part = target.with_suffix(".pt.part")
    content = {
        "model": {name: _own(value) for name, value in task.model.state_dict().items()},
        "optimizer": {
            name: {key: _own(value) for key, value in state.items()}
            for name, state in task.optimizer_state().items()
        },
        "step": step,
    }
    try:
        with open(part, "wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    return target


def _own(value: object) -> object:
    """A tensor's values alone: saving a view would save the whole store with it."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
