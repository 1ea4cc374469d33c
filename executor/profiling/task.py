"""A task in a profile: its layers, and what each costs at every microbatch that can be run."""

import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from msgspec.structs import replace
from torch import nn
from tqdm import tqdm

from executor.cutting import Chain, chain_of, left_out, name_of
from executor.devices import Device
from executor.errors import WorkloadError
from executor.numerics import needs_norms, norm_bytes
from executor.optim import Recipe
from executor.profiling import tokens
from executor.profiling.alike import Alike, Costs, Kinds, Look, kind_of, look
from executor.profiling.batch_checks import (
    SAME_DRAWS,
    Trial,
    batches_of,
    check_evaluation,
    draws_that_vary,
    sizes_that_go_another_way,
    told,
)
from executor.profiling.bench import Bench, Case, on_device
from executor.profiling.layer_checks import (
    batch,
    blamed,
    check_eval_mode,
    check_layers,
)
from executor.profiling.model_checks import check_left_out, check_model
from executor.profiling.parts import Probe, find_parts
from executor.shards import Shard, base_of, tie_bytes, ties
from executor.workload import (
    Batch,
    Task,
    batch_bytes,
    build,
    built_fingerprint,
    held_out,
    lengths_of,
    part,
    settings_of,
)
from profiles import schema
from profiles.codec import align
from profiles.lengths import describe
from profiles.units import microbatch_sizes


class _Apart(NamedTuple):
    """A model with its layers, and the batch that they were found with; `sizes` of microbatches
    that they can be run with. recomputes: checkpointing of its own was left out."""

    model: nn.Module
    sha256: str
    chain: Chain
    first: Batch
    sizes: list[int]
    recomputes: bool


def _taken_apart(task: Task, said: str, lengths: Sequence[int]) -> _Apart:
    """The task's model in layers, see `measure`."""
    model, _ = build(task)
    sha256 = built_fingerprint(said, model)
    if task.lengths is None:
        found = batch(task)
        asked = microbatch_sizes(found.size)
    else:
        asked = tokens.sizes(task, lengths)
        found = tokens.one(task, asked[-1])
    with blamed(f"task {task.name}"), left_out() as seen:
        check_model(task, model, found.inputs)
        has_loss, any_size = task.loss is not None, task.lengths is not None
        chain = chain_of(model, found.inputs, has_loss, task.precision, any_size=any_size)
    sizes = [n for n in asked if chain.batch in (None, n)]
    if not sizes:
        raise WorkloadError(
            f"task {task.name}: its layers are made for microbatches of {chain.batch} samples "
            f"only; asked for are microbatches of {', '.join(map(str, asked))}"
        )
    return _Apart(model, sha256, chain, found, sizes, seen.calls > 0)


class _Tried(NamedTuple):
    """Layers that can be run again in microbatches of these `sizes`. draws: those that draw now
    more, now fewer random numbers, in words. why_not: see `schema.Lengths`."""

    trial: Trial
    sizes: list[int]
    draws: dict[int, str]
    why_not: str
    parts: schema.Parts


def _tried(task: Task, apart: _Apart, kinds: Kinds) -> _Tried:
    """Run layers on batches, to refuse or tell what a plan could not have."""
    model, _, chain, found, sizes, recomputes = apart
    layers, sizes = chain.layers, list(sizes)
    with left_out() as seen_apart:
        batches = tokens.tried(task, found) if task.batch else batches_of(task, found)
        trial = Trial(task, layers, batches, kinds.device)
        if task.batch:
            tokens.check_evaluation(task)
        else:
            check_evaluation(task, found)
        check_layers(task, layers)
        if task.batch:
            tokens.check_sums(task, model, layers)
        why_not = tokens.mixes(task, model, layers, sizes[-1]) if task.batch else ""
        draws = draws_that_vary(trial, sizes)
        if task.batch:
            tokens.check_steady(trial, draws)
        others = {} if task.batch else sizes_that_go_another_way(trial, sizes[:-1])
        parts = (
            schema.Parts() if task.batch else _parts(task, apart, batches.values(), kinds.device)
        )
    if why_not:
        alone = "each sequence has a microbatch of its own"
        _say(f"note: task {task.name}: {alone}; {why_not}; {tokens.TO_PACK}")
    for index, how in draws.items():
        _say(
            f"note: {trial.place(index)} draws {how} random numbers, so its batches run in one "
            f"microbatch only; {SAME_DRAWS}; {told(trial.batches)}"
        )
    for size, why in others.items():
        _say(f"note: task {task.name}: microbatches of {size} are left out; {why}")
        sizes.remove(size)
    if recomputes or seen_apart.calls:
        with blamed(f"task {task.name}"):
            check_left_out(task, model, chain, found.inputs)
    if task.evaluate:
        check_eval_mode(task, model, layers, found)
    return _Tried(trial, sizes, draws, why_not, parts)


def _parts(task: Task, apart: _Apart, batches: Iterable[Batch], device: Device) -> schema.Parts:
    """The relation of these batches' parts to the whole; a note is printed of an unusual one."""
    model, chain = apart.model, apart.chain
    if chain.batch:
        return schema.Parts(why=f"its layers are made for microbatches of {chain.batch}")
    layers = chain.layers if isinstance(model, nn.ModuleList) else ()  # which has no forward
    found = find_parts(Probe(task, model, layers), list(batches), device)
    if found.kind == "whole":
        mean = "; if its loss is a mean over what can be counted, say weight=lambda batch: COUNT"
        _say(
            f"note: task {task.name}: its batch stays whole; parts of it would train something "
            f"else ({found.why}), as --microbatch N of build lets them"
            + (mean if found.why == "loss" and not task.weight else "")
        )
    elif found.why and found.kind == "additive":
        _say(f"note: task {task.name}: parts of its batch are not compared with it; {found.why}")
    return found


def measure(
    task: Task,
    ref: str,
    said: str,
    kinds: Kinds,
    bar: "tqdm[None]",
    lengths: Sequence[int] = (),
) -> schema.Task:
    """Measure the task's layers; WorkloadError for one that cannot be cut or trained. It is of the
    workload `ref` and has the fingerprint `said`. `lengths`: of sequences, for a task whose samples
    have lengths."""
    bar.set_description(f"{task.name}: finding layers")
    model, sha256, chain, found, *_ = apart = _taken_apart(task, said, lengths)
    bar.set_description(f"{task.name}: checking layers and batches")
    trial, sizes, draws, why_not, parts = _tried(task, apart, kinds)
    layers = chain.layers
    bar.total += len(layers)
    bar.set_description(f"{task.name}: measuring")
    trainable = {id(p) for layer in layers for p in layer.parameters() if p.requires_grad}
    recipe = task.recipe(model)
    optimizer = _optimizer(task, recipe, list(model.parameters()))
    measured = _layers(trial, recipe, sizes, kinds, bar)
    for index in draws:  # from one batch to another a varying number
        costs = tuple(replace(cost, rng_draws=None) for cost in measured[index].costs)
        measured[index] = replace(measured[index], costs=costs)
    if task.batch:
        _check_lengths(trial, measured)
    fit, groups = {cost.microbatch for cost in measured[0].costs}, ties(layers)
    return schema.Task(
        name=task.name,
        workload=schema.Workload(ref, sha256, settings_of(task)),
        steps=task.steps,
        batch=task.batch or found.size,
        optimizer=optimizer,
        batches=tuple(
            schema.BatchCost(n, batch_bytes(part(found, 0, n))) for n in sizes if n in fit
        ),
        ties=groups,
        tie_bytes=tuple(tie_bytes(layers, group, task.precision) for group in groups),
        precision=task.precision,
        norm_bytes=norm_bytes(len(trainable)) if needs_norms(task.precision, task.clip) else 0,
        evaluation=schema.Evaluation(task.evaluate.every, task.evaluate.batches or 1)
        if task.evaluate
        else None,
        cut=chain.cut,
        lengths=describe(lengths_of(task), why_not) if task.batch else None,
        evaluation_lengths=describe(lengths_of(held_out(task)), why_not)
        if task.batch and task.evaluate
        else None,
        parts=parts,
        base=base_of(model, task.precision),
        layers=tuple(measured),
    )


def _optimizer(task: Task, recipe: Recipe, parameters: list[nn.Parameter]) -> str:
    """The class of an optimizer of the whole model, as a plain loop makes it. WorkloadError for one
    that could not train."""
    if not parameters:
        return "none"
    with blamed(f"task {task.name}: optimizer"):
        return type(recipe.make(parameters, parameters)[0]).__name__


def _check_lengths(trial: Trial, layers: Sequence[schema.Layer]) -> None:
    """WorkloadError where bytes or draws do not grow with tokens; a note where times do not."""
    for index, layer in enumerate(layers):
        tokens.check_linear(trial.place(index), layer.costs)
        tokens.check_draws(trial.place(index), layer.costs, shared=trial.device.source.shared)
    if words := tokens.bad_fits(layers):
        _say(f"note: task {trial.task.name}: {words}")


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _layers(
    trial: Trial, recipe: Recipe, sizes: list[int], kinds: Kinds, bar: "tqdm[None]"
) -> list[schema.Layer]:
    """All layers: run in turn, each on the boundaries that the one before it gave, and then
    measured, those of a kind together."""
    task, layers, found = trial.task, trial.layers, trial.batches[0]
    batches = {size: part(found, 0, size) for size in sizes}
    xs: dict[int, Any] = {size: batches[size].inputs for size in sizes}
    seen: set[int] = set()
    records: list[schema.Layer] = []
    groups: dict[Hashable, Alike] = {}
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        cases = [
            Case(task, layer, x, batches[size] if last else None, index == 0, size, recipe)
            for size, x in xs.items()
        ]
        owned = [p for p in layer.parameters() if id(p) not in seen]
        seen |= {id(p) for p in owned}
        with blamed(trial.place(index)):
            shard = on_device(cases[-1], kinds.device)
            looks = _looks(cases, shard, kinds.device)
            # what is kept of changing buffers for microbatches to be run again
            most = task.batch or found.size  # microbatches of a step
            snapshots = most * shard.buffers.changing_bytes
            in_turn = bool(shard.buffers.changing)
            del shard
            cases = [case for case in cases if case.microbatch in looks]
            groups.setdefault(kind_of(cases, looks), Alike()).add(index, cases)
            buffers = sum(align(buffer.nbytes) for buffer in layer.buffers()) + snapshots
            state = kinds.state(cases[-1], owned)
            own = {"name": name_of(layer), "buffer_bytes": buffers, "in_turn": in_turn}
            records.append(replace(state, **own))
        xs = {size: look.output for size, look in looks.items()}
    costs: dict[int, Costs] = {}
    for kind, alike in groups.items():
        with blamed(trial.place(min(alike.layers))):
            costs |= kinds.costs(kind, alike)
        bar.update(len(alike.layers))
    fit = set.intersection(*({cost.microbatch for cost in known} for known in costs.values()))
    if not fit:
        raise WorkloadError(f"task {task.name}: no microbatch size fits the device in all layers")
    return [
        replace(layer, costs=tuple(cost for cost in costs[index] if cost.microbatch in fit))
        for index, layer in enumerate(records)
    ]


def _looks(cases: list[Case], shard: Shard, device: Device) -> dict[int, Look]:
    """The layer as seen at the sizes that it can be run with.

    The whole batch is known to do, or to be too large for the device; a small one may be too few
    samples for the layer, as one is for a BatchNorm."""
    looks: dict[int, Look] = {}
    for case in cases:
        try:
            looks[case.microbatch] = look(Bench(case, device, shard))
        except torch.OutOfMemoryError:
            break
        except (ValueError, RuntimeError):
            if case is cases[-1]:
                raise
    if not looks:
        raise WorkloadError("does not fit the device with the smallest microbatch")
    return looks
