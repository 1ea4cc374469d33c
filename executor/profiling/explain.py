"""Says what a workload's models are taken apart into, and why: told without measuring anything."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from executor.cutting import (
    TOLD,
    Chain,
    chain_of,
    first,
    isolated,
    left_out,
    lowered,
    lowered_inputs,
    name_of,
    through,
)
from executor.errors import one_line
from executor.numerics import computing, tensors_of
from executor.profiling import tokens
from executor.profiling.alike import parts_of
from executor.profiling.layer_checks import batch
from executor.shards import joined, ties
from executor.workload import Task, build, load
from profiles import console
from profiles.codec import align
from profiles.schema import Precision
from profiles.units import show_bytes

_SAMPLES = 2
_WAYS = {
    "sequential": "the children of the model, an nn.Sequential or a list",
    "modules": "the model's lists of modules, and what it does around them",
    "graph": "the model's graph of operations, cut where little goes across",
    "whole": "the whole model is one layer",
}


def explain(ref: str) -> str:
    """For each task how its layers were found, a table of them, and what is unusual in it.

    WorkloadError as `profile` would raise it.
    """
    tasks, _ = load(ref)
    told = []
    for task in tasks:
        with left_out() as seen:
            lines = _lines(task)
        told.append("\n".join([*lines, f"  {TOLD}"] if seen.calls else lines))
    return "\n\n".join(told)


def _lines(task: Task) -> list[str]:
    """The way in which a task's layers were found, their table, and remarks."""
    model, _ = build(task)
    inputs = (batch(task) if task.lengths is None else tokens.one(task)).inputs
    has_loss, any_size = task.loss is not None, task.lengths is not None
    chain = chain_of(model, inputs, has_loss, task.precision, any_size=any_size)
    lines = [f"{task.name}: {len(chain.layers)} layers; {_WAYS[chain.how]}"]
    if chain.batch is not None:
        lines.append(f"  only for microbatches of {chain.batch}")
    lines += [f"  {reason}" for reason in chain.why]
    kinds = len(set(parts_of(chain.layers)))
    if kinds < len(chain.layers):
        lines.append(f"  of {kinds} kinds; a profile measures one of each and checks two, if alike")
    lines += [f"  {row}" for row in console.columns(_rows(task, model, chain, inputs))]
    return lines + [f"  {remark}" for remark in _remarks(model, chain.layers, task.precision)]


def _rows(task: Task, model: nn.Module, chain: Chain, inputs: Any) -> list[tuple[str, ...]]:
    size = chain.batch or min(_SAMPLES, len(tensors_of(inputs)[0]))
    few = first(inputs, size)
    heading = f"boundary of {size}" if size > 1 else "boundary"
    rows: list[tuple[str, ...]] = [("layer", "name", "parameters", "bytes", heading, "holds")]
    boundaries = _boundaries(task, model, chain, few)
    for index, layer in enumerate(chain.layers):
        own = list(layer.parameters())
        count, held = sum(p.numel() for p in own), sum(align(p.nbytes) for p in own)
        end = boundaries[index] if index < len(boundaries) else ("", "")
        rows.append((str(index), name_of(layer), f"{count:,}", show_bytes(held), *end))
    return rows


def _boundaries(task: Task, model: nn.Module, chain: Chain, inputs: Any) -> list[tuple[str, str]]:
    """Bytes and contents of what each layer but the last hands on."""
    found: list[tuple[str, str]] = []
    with lowered(model, task.precision), isolated(model):
        value = inputs = lowered_inputs(inputs, task.precision)
        with torch.no_grad(), computing(task.precision, torch.device("cpu")):
            for layer in chain.layers[:-1]:
                try:
                    value = through(layer, value, inputs)
                except Exception as error:
                    return [*found, ("", one_line(error))]
                tensors = tensors_of(value)
                size = sum(align(x.nbytes) for x in tensors)
                found.append((show_bytes(size), ", ".join(map(_shown, tensors))))
    return found


def _shown(tensor: Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind}[{', '.join(map(str, tensor.shape))}]"


def _remarks(model: nn.Module, layers: Sequence[nn.Module], precision: Precision) -> list[str]:
    """Tied layers; parameters that do not learn or that no layer uses; buffers that may change."""
    held = {id(p) for layer in layers for p in layer.parameters()}
    named = list(model.named_parameters())
    frozen = [name for name, p in named if not p.requires_grad]
    unused = [name for name, p in named if id(p) not in held]
    changing = [
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        if module.training and getattr(module, "track_running_stats", False)
        for name, _ in module.named_buffers(recurse=False)
    ]
    remarks = []
    for group in ties(layers):
        why = joined(layers, group, precision)
        where = f"; they and all between them stay in one shard, for {why}" if why else ""
        remarks.append(f"layers {', '.join(map(str, group))} share parameters{where}")
    for what, names in (
        ("frozen", frozen),
        ("in no layer, never learn", unused),
        ("buffers that a forward changes", changing),
    ):
        if names:
            remarks.append(f"{what}: {_listed(names)}")
    return remarks


def _listed(names: Sequence[str], most: int = 6) -> str:
    shown: Iterable[str] = names[:most]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown) + more
