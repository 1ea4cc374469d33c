"""The settings of optimizers, in a form that outlives the cut in shards: options of parameter
groups, schedulers, and counters that belong to no parameter.

Shards that agree, as they do after equally many steps, are one entry in a checkpoint; each shard
of another plan takes the entry that has its parameters.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from executor.errors import MismatchError
from executor.numerics import same

Names = Mapping[int, str]  # of parameters, by the id of what the optimizer steps

_AGREE = ("options", "scheduler", "other", "kinds")


def settings_of(
    optimizer: Optimizer, scheduler: LRScheduler | None, names: Names
) -> dict[str, Any]:
    """One shard's entry, as plain data: what cannot be such stays as the workload makes it."""
    groups = optimizer.param_groups
    state: dict[Any, Any] = optimizer.state
    found = {
        "params": [[names[id(p)] for p in group["params"]] for group in groups],
        "options": [{k: v for k, v in group.items() if k != "params"} for group in groups],
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "other": {key: value for key, value in state.items() if isinstance(key, str)},
        "kinds": _kinds(optimizer, scheduler),
    }
    made = _plain(found)
    assert isinstance(made, dict)
    return made


def merged(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of all shards that step parameters, those that agree as one."""
    out: list[dict[str, Any]] = []
    for entry in (one for one in entries if any(one["params"])):
        known = next((e for e in out if all(same(e[k], entry[k]) for k in _AGREE)), None)
        if known is None:
            out.append(entry)
        else:
            pairs = zip(known["params"], entry["params"], strict=True)
            known["params"] = [[*mine, *more] for mine, more in pairs]
    return out


def restore(
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
    names: Names,
    saved: Sequence[Mapping[str, Any]],
) -> None:
    """Go on with the settings of the entries that have these parameters.

    MismatchError where there are several, or none has what is wanted.
    """
    mine = {names[id(p)] for group in optimizer.param_groups for p in group["params"]}
    if not mine:
        return
    entries = [entry for entry in saved if mine & {n for one in entry["params"] for n in one}]
    if len(entries) > 1:
        first, second = (next(n for one in e["params"] for n in one if n in mine) for e in entries)
        raise MismatchError(
            f"the checkpoint has other settings of the optimizer for {first} than for {second}, "
            "which the plan has in one shard; let the optimizer make the same groups whatever "
            "parameters it is given, empty ones too, or use the task's groups"
        )
    entry = copy.deepcopy(dict(entries[0])) if entries else {}
    if (scheduler is None) != (entry.get("scheduler") is None):
        have, lack = ("task", "checkpoint") if scheduler else ("checkpoint", "task")
        raise MismatchError(
            f"the {have} has a scheduler and the {lack} none; go on with what the task began with"
        )
    if not entry:
        return
    for theirs, own in zip(entry.get("kinds", ()), _kinds(optimizer, scheduler), strict=False):
        if theirs != own:
            raise MismatchError(
                f"the checkpoint is of {theirs}, the task trains with {own}; go on with what the "
                "task began with"
            )
    if len(entry["options"]) != len(optimizer.param_groups):
        raise MismatchError(
            f"the checkpoint has {len(entry['options'])} parameter groups, the optimizer "
            f"{len(optimizer.param_groups)}; go on with those that the task began with"
        )
    for group, options in zip(optimizer.param_groups, entry["options"], strict=True):
        group.update(options)
    optimizer.state.update(entry["other"])
    if scheduler is not None:
        scheduler.load_state_dict(entry["scheduler"])


def _kinds(*made: object) -> list[str]:
    """`torch.optim.AdamW`: the classes of an optimizer and of its scheduler, if it has one. Those
    of a workload's file have no more than their name, since the file may move."""
    return [_kind(type(one)) for one in made if one is not None]


def _kind(made: type) -> str:
    where = made.__module__
    if where.startswith("torch.optim."):  # public names stay what they are
        where = "torch.optim.lr_scheduler" if "lr_scheduler" in where else "torch.optim"
    is_own = where.startswith("workload_") or where == "__main__"
    return made.__qualname__ if is_own else f"{where}.{made.__qualname__}"


_LEAVE = object()


def _plain(value: Any) -> Any:
    """The value as numbers, texts, tensors and lists and dicts of them; `_LEAVE` if it is none.

    In a dict what is none is left out."""
    if value is None or type(value) in (bool, int, float, complex, str):
        return value
    if type(value) is Tensor:
        return value.detach().to("cpu", copy=True)
    if isinstance(value, int | float):  # numpy's numbers are floats, too
        return float(value) if isinstance(value, float) else int(value)
    if type(value) is dict:
        made = {key: _plain(one) for key, one in value.items() if type(key) in (int, str)}
        return {key: one for key, one in made.items() if one is not _LEAVE}
    if type(value) in (list, tuple):
        items = [_plain(one) for one in value]
        return _LEAVE if any(one is _LEAVE for one in items) else type(value)(items)
    return _LEAVE
