"""Checkpoints: ordinary state dicts by the user's own parameter names, and where to go on."""

import os
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from executor.errors import MismatchError, UsageError, one_line
from executor.store import HostTask, Saved
from plans.schema import Task as PlanTask


def make_folder(folder: Path) -> None:
    """Find out before the run, not after it, that nothing could be saved there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made: {error.strerror}") from None


def keep(folder: Path, task: HostTask, step: int) -> Path:
    """`save` as `<folder>/<task>-<step>.pt`, from where a run can go on."""
    path = save(path_of(folder, task.plan.name, step), task, step)
    task.release()
    return path


def forget(folder: Path, task: str, step: int) -> None:
    """Remove what was kept of the task at other steps; once the log knows of this one."""
    kept = re.compile(re.escape(task) + r"-(\d+)\.pt")
    for path in folder.iterdir():
        match = kept.fullmatch(path.name)
        if match and int(match[1]) != step:
            path.unlink(missing_ok=True)


def save(target: Path, task: HostTask, step: int) -> Path:
    """Write the file whole or not at all; the task's state must be settled.

    The folder must exist. The file holds {"model": state_dict, "optimizer": {parameter name:
    state}, "step": steps done, "rng": state of the default generator, "loss_scale": of fp16,
    "settings": of parameter groups and schedulers}.
    """
    part = target.with_suffix(".pt.part")
    content = {
        "model": {name: own(value) for name, value in task.whole().state_dict().items()},
        "optimizer": {
            name: {key: own(value) for key, value in state.items()}
            for name, state in task.optimizer_state().items()
        },
        "step": step,
        "rng": task.rng_state,
        "loss_scale": task.loss_scale,
        "settings": task.settings(),
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


def load(folder: Path | None, tasks: Sequence[PlanTask]) -> dict[str, Saved]:
    """What the tasks that were trained before this plan go on from, by name.

    UsageError without a folder or file, MismatchError for a checkpoint of another step.
    """
    begun = [task for task in tasks if task.done]
    if begun and folder is None:
        raise UsageError(
            f"task {begun[0].name} goes on after step {begun[0].done}; say where its checkpoint "
            "is, --resume DIR"
        )
    found = {}
    for task in begun:
        assert folder is not None
        path = path_of(folder, task.name, task.done)
        content = _read(path)
        if content["step"] != task.done:
            raise MismatchError(
                f"{path}: is of step {content['step']}, the plan goes on after {task.done}; "
                "build it from the log of the run that made this checkpoint"
            )
        found[task.name] = Saved(
            content["model"],
            content["optimizer"],
            content["rng"],
            content["loss_scale"],
            content.get("settings", ()),
        )
    return found


def path_of(folder: Path, task: str, step: int) -> Path:
    """Where a task's state after so many steps is kept."""
    return folder / f"{task}-{step}.pt"


def _read(path: Path) -> dict[str, Any]:
    """The content; loading it runs no code from it."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such checkpoint") from None
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        raise UsageError(f"{path}: is no checkpoint: {one_line(error)}") from None
    wanted = {"model", "optimizer", "step", "rng", "loss_scale"}
    if not isinstance(content, dict) or not wanted <= content.keys():
        raise UsageError(f"{path}: is no checkpoint that a run can go on from")
    return content


def own(value: object) -> object:
    """A tensor's values alone: a view is one of the whole store."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
