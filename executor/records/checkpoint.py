"""Checkpoint files: ordinary state dicts by the user's own parameter names, checked when read."""

import io
import os
import pickle
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from errno import EFBIG
from hashlib import sha256
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint
from torch.utils._pytree import tree_leaves, tree_map

from executor.errors import MismatchError, RunError, UsageError, one_line
from executor.outputs import free_bytes, part_of, whole
from executor.shards import HostTask, Saved, frozen_in
from plans.schema import Task as PlanTask
from profiles.units import show_bytes

_FEW = 1 << 16  # bytes that are copied when a file is read
_AGAIN = "copy it again, or train from the begin with --overwrite"
_WHERE = "give the folder of the run that the plan was built from"
_WANTED = {"model", "optimizer", "step", "rng", "loss_scale"}


def path_of(folder: Path, task: str) -> Path:
    """The file of a task's latest state in a run's folder."""
    return folder / f"{task}.pt"


def write_part(target: Path, task: HostTask, step: int) -> Path:
    """Write the whole file under its temporary name, which `put` replaces; the task's state must be
    settled, and the folder exist.

    The file holds {"model": state_dict, "optimizer": {parameter name: state}, "step": steps done,
    "rng": state of the default generator, "loss_scale": of fp16, "settings": of parameter groups
    and schedulers, "samples": of a loader's dataset, "base": of a task that has one, whose frozen
    parameters are then left out of the state dict}. RunError, and no file, where that fails.
    """
    seen: dict[int, torch.dtype] = {}
    model = task.whole()
    left_out = frozen_in(model) if task.base else {}
    content: dict[str, Any] = {
        "model": {
            name: alone(value, seen)
            for name, value in model.state_dict().items()
            if name not in left_out
        },
        "optimizer": {
            name: {key: alone(value, seen) for key, value in state.items()}
            for name, state in task.optimizer_state().items()
        },
        "step": step,
        "rng": task.rng_state,
        "loss_scale": task.loss_scale,
        "settings": task.settings(),
        "samples": task.samples,
        "base": task.base,
    }
    return write(target, content)


def write(target: Path, content: dict[str, Any]) -> Path:
    """Write this as `write_part` does."""
    part = part_of(target)
    try:
        with whole(part), _Sink(part, "w") as sink:
            try:
                torch.save(content, sink)
                os.fsync(sink.fileno())
            except Exception as error:  # of a full disk or a signal torch says something else
                raise sink.error or _interrupt(error) or error from None
    except OSError as error:
        size = sum(leaf.nbytes for leaf in tree_leaves(content) if isinstance(leaf, Tensor))
        raise RunError(_unwritten(target, error, size)) from None
    return part


def _interrupt(error: BaseException | None) -> KeyboardInterrupt | None:
    """The signal that caused an error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error


def expect_safe(part: Path, target: Path) -> None:
    """RunError for what `load` would refuse: no run could go on from there."""
    if names := get_unsafe_globals_in_checkpoint(part):
        raise RunError(
            f"{target}: no run could go on from it: the task's state holds {', '.join(names)}, and "
            "checkpoints hold only tensors and plain data; keep numbers, texts or tensors in the "
            "optimizer and the model"
        )


def put(part: Path, target: Path) -> Path:
    """Give what `write_part` wrote its name, for good."""
    try:
        part.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
    except OSError as error:
        raise RunError(f"{target}: cannot be written: {error.strerror}") from None
    with suppress(OSError):  # some file systems cannot
        os.fsync(folder)
    os.close(folder)
    return target


def identity(path: Path) -> str:
    """A text that is the same for files with the same content; "none" where there is no
    checkpoint."""
    try:
        with zipfile.ZipFile(path) as records:
            known = [(record.filename, record.CRC) for record in records.infolist()]
    except (OSError, zipfile.BadZipFile):  # `load` says why
        return "none"
    return sha256(repr(known).encode()).hexdigest()


def load(folder: Path | None, tasks: Sequence[PlanTask]) -> dict[str, Saved]:
    """The states from which tasks that were trained before go on, by name, from a run's folder.

    UsageError without a folder; MismatchError, a line for everything that is wrong, for files that
    are missing, damaged or of another step.
    """
    found, lines = {}, list[str]()
    for task in tasks:
        if not task.done:
            continue
        if folder is None:
            raise UsageError(
                f"task {task.name} goes on after step {task.done}; give the folder of the run that "
                "has come so far, -o runs/x"
            )
        try:
            found[task.name] = read(path_of(folder, task.name), task.done)
        except UsageError as error:
            lines.append(str(error))
    if lines:
        raise MismatchError(*lines)
    return found


def read(path: Path, step: int) -> Saved:
    """The state in a file, of so many steps. Its tensors may be the file's bytes: what is large is
    copied soon. UsageError, which begins with the path.

    A run that was killed after it had logged a checkpoint and before it had renamed the file left
    it as a part."""
    part = part_of(path)
    content = _read(part if part.exists() and is_of(part, step) else path)
    if content["step"] != step:
        raise UsageError(
            f"{path}: is of step {content['step']}, the plan goes on after {step}; {_WHERE}"
        )
    small = tree_map(lambda value: own(value) if _small(value) else value, content)
    return Saved(
        small["model"],
        small["optimizer"],
        small["rng"],
        small["loss_scale"],
        small.get("settings", ()),
        small.get("samples"),
        small.get("base"),
    )


def is_of(path: Path, step: int) -> bool:
    """True for a whole checkpoint of so many steps."""
    with suppress(UsageError):
        return bool(_read(path)["step"] == step)
    return False


def _small(value: object) -> bool:
    """True for tensors of few bytes, which outlive the file."""
    return isinstance(value, Tensor) and value.nbytes <= _FEW


def _read(path: Path) -> dict[str, Any]:
    """The file's content, whose checksums are right; no code from it is run."""
    try:
        with zipfile.ZipFile(path) as records:
            if damaged := records.testzip():
                raise UsageError(
                    f"{path}: is damaged: the checksum of {damaged} is wrong; {_AGAIN}"
                )
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except zipfile.BadZipFile:
        raise UsageError(
            f"{path}: is no checkpoint, or only the beginning of one; {_AGAIN}"
        ) from None
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such checkpoint; {_WHERE}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; {_WHERE}") from None
    except pickle.UnpicklingError:
        raise UsageError(f"{path}: {_unsafe(path)}") from None
    except UsageError:
        raise
    except Exception as error:  # which one, depends on where a file is damaged
        raise UsageError(
            f"{path}: is no checkpoint, or damaged: {one_line(error)}; {_AGAIN}"
        ) from None
    if not isinstance(content, dict) or not content.keys() >= _WANTED:
        raise UsageError(f"{path}: is no checkpoint that a run can go on from; {_WHERE}")
    return content


def _unsafe(path: Path) -> str:
    """The reason why a file was not loaded in which torch finds more than plain data."""
    try:
        names = ", ".join(get_unsafe_globals_in_checkpoint(path))
    except Exception:
        names = ""
    if not names:
        return f"is damaged: its index cannot be read; {_AGAIN}"
    return (
        f"is not loaded: loading it would run code from it ({names}), and checkpoints hold only "
        "tensors and plain data; go on from one that a run has written"
    )


class _Sink(io.FileIO):
    """A file that remembers why it could not be written."""

    error: BaseException | None = None

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except BaseException as error:
            self.error = self.error or error
            raise
        return size


def _unwritten(target: Path, error: OSError, size: int) -> str:
    text = f"{target}: cannot be written: {error.strerror}; it takes {_both(size)}, "
    if error.errno == EFBIG:
        return f"{text}and no file may have more than {_both(getrlimit(RLIMIT_FSIZE)[0])} (ulimit)"
    try:
        return f"{text}and {_both(free_bytes(target.parent))} are free there"
    except OSError:
        return f"{text}and its folder is gone"


def _both(count: int) -> str:
    return f"{show_bytes(count)} ({count} bytes)"


def own(value: object) -> object:
    """A tensor's values alone: a view is one of the whole store."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def alone(value: Any, seen: dict[int, torch.dtype]) -> Any:
    """The tensor as one of nothing but its own bytes, which stay where they are if they can.

    `seen`: dtypes by address, since torch saves no bytes that are shown as two."""
    if not isinstance(value, Tensor):
        return value
    plain = type(value.detach()) is Tensor and value.layout == torch.strided
    if not plain or value.device.type != "cpu" or value.is_quantized or not value.numel():
        return own(value)
    if not value.is_contiguous() or value.is_conj() or value.is_neg():
        return own(value)
    if seen.setdefault(value.data_ptr(), value.dtype) != value.dtype:
        return own(value)
    data = value.detach().reshape(-1).view(torch.uint8).numpy()
    return torch.from_numpy(data).view(value.dtype).reshape(value.shape)
