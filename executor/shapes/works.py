"""The works of a workload: its profile but for the times, found without values and without a GPU.

Models are built on the meta device, so their size does not matter. What is not seen: bits, so that
no cut is proven; values that a model's code goes by; memory within kernels; casts of autocast.
"""

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from hashlib import sha256

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from executor.cutting import Chain, chain_of, lowered, lowered_inputs, name_of
from executor.errors import WorkloadError, one_line
from executor.numerics import mapped, needs_norms, norm_bytes
from executor.shapes.kernels import Ran, Usual, ran
from executor.shards import Shard, frozen_in, tie_bytes, ties
from executor.workload import Batch, Ending, Task, batch_bytes, batch_of, build, load, part
from profiles import schema
from profiles.codec import align
from profiles.units import microbatch_sizes
from profiles.works import NO_TIME, Work, Works

_META = torch.device("meta")
_FLOAT = 4  # bytes of moments and of masters


def works_of(ref: str) -> Works:
    """The works of a workload's tasks; WorkloadError for one whose shapes do not say them."""
    tasks, said = load(ref)
    found = []
    for task in tasks:
        try:
            found.append(_seen(task, ref, said[task.name]))
        except WorkloadError:
            raise
        except Exception as error:
            raise WorkloadError(
                f"task {task.name}: shapes alone do not say what it computes: {one_line(error)}; "
                "profile it where it can run"
            ) from error
    made, moments, layers = zip(*found, strict=True)
    return Works(made, moments, layers)


def _seen(task: Task, ref: str, said: str) -> tuple[schema.Task, int, tuple[Work, ...]]:
    if task.lengths is not None:
        raise WorkloadError(f"task {task.name}: has lengths; profile it where it can run")
    optimizer, moments = _optimizer(task)
    model, found = _on_meta(task), batch_of(task, 0)
    batch = Batch(*(mapped(lambda t: t.to(_META), value) for value in found))
    with _META, Usual():
        chain = chain_of(model, batch.inputs, task.loss is not None, task.precision)
        sizes = [n for n in microbatch_sizes(batch.size) if chain.batch in (None, n)]
        runs = _runs_by_size(task, model, chain, batch, sizes)
    if chain.how == "whole":
        why = "`python -m executor profile --explain` may see more where it can run"
        print(f"note: task {task.name}: its shapes show one layer; {why}", file=sys.stderr)
    layers, works = [], []
    for index, state in enumerate(_states(task, chain.layers, moments)):
        own = {n: several[index] for n, several in runs.items()}
        costs = tuple(replace(run.cost, microbatch=n) for n, run in own.items())
        layers.append(replace(state[0], costs=costs))
        works.append(Work(state[1], tuple((run.forward, run.backward) for run in own.values())))
    groups = ties(chain.layers)
    trained = sum(p.requires_grad for p in model.parameters())
    low = task.precision == "bf16"
    frozen = [f"{value.dtype} {low} {tuple(value.shape)}" for value in frozen_in(model).values()]
    made = schema.Task(
        name=task.name,
        workload=schema.Workload(ref, sha256(f"estimate {said}".encode()).hexdigest()),
        steps=task.steps,
        batch=batch.size,
        optimizer=optimizer,
        batches=tuple(schema.BatchCost(n, batch_bytes(part(batch, 0, n))) for n in runs),
        ties=groups,
        tie_bytes=tuple(tie_bytes(chain.layers, group, task.precision) for group in groups),
        precision=task.precision,
        norm_bytes=norm_bytes(trained) if needs_norms(task.precision, task.clip) else 0,
        evaluation=schema.Evaluation(task.evaluate.every, task.evaluate.batches or 1)
        if task.evaluate
        else None,
        base=sha256(repr(frozen).encode()).hexdigest() if frozen else None,
        layers=tuple(layers),
    )
    return made, moments, tuple(works)


def _on_meta(task: Task) -> nn.Module:
    """The task's model without values: built so, or where that cannot be, built and left so."""
    try:
        with _META:
            model = task.model if isinstance(task.model, nn.Module) else task.model()
    except Exception:
        model, _ = build(task)  # which says what is wrong, or that it needs values
    twins: dict[int, Tensor] = {id(b): b.to(_META) for b in model.buffers()}
    twins |= {id(p): nn.Parameter(p.to(_META), p.requires_grad) for p in model.parameters()}
    return deepcopy(model, twins).train()


def _optimizer(task: Task) -> tuple[str, int]:
    """The class of the task's optimizer, and how many numbers it keeps of each that it trains."""
    twin = nn.Parameter(torch.zeros(4, 6))
    twin.grad = torch.ones_like(twin)
    made = task.optimizer([twin])
    made.step()
    full = [x for x in made.state[twin].values() if isinstance(x, Tensor) and x.shape == twin.shape]
    return type(made).__name__, len(full)


def _runs_by_size(
    task: Task, model: nn.Module, chain: Chain, batch: Batch, sizes: Sequence[int]
) -> dict[int, list[Ran]]:
    """The runs in microbatches of the sizes that all layers can take."""
    found = {}
    for size in sizes:
        try:
            found[size] = list(_runs(task, model, chain, part(batch, 0, size)))
        except ValueError:  # as of one sample, whose statistics a batch norm cannot take
            if size == sizes[-1]:
                raise
    return found


def _runs(task: Task, model: nn.Module, chain: Chain, batch: Batch) -> Iterator[Ran]:
    """Each layer on a microbatch, on what the one before it gave."""
    with lowered(model, task.precision):
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        x = lowered_inputs(batch.inputs, task.precision)
        batch = batch._replace(inputs=x)
        for layer in chain.layers:
            found = ran(layer, x, batch, Ending(task.loss) if layer is chain.layers[-1] else None)
            yield found
            x = found.output
        for parameter in model.parameters():
            parameter.grad = None


def _states(
    task: Task, layers: Sequence[nn.Module], moments: int
) -> Iterator[tuple[schema.Layer, int]]:
    """Each layer without its costs, and how many numbers it trains."""
    seen = set[int]()
    waits = needs_norms(task.precision, task.clip)
    for layer in layers:
        own = [p for p in layer.parameters() if id(p) not in seen]
        seen |= set(map(id, own))
        held = Shard([nn.ParameterList(own)], task.optimizer, precision=task.precision)
        trained = [p.numel() for p in own if p.requires_grad]
        kept = moments + (task.precision == "bf16")
        yield (
            schema.Layer(
                name=name_of(layer),
                param_bytes=held.param_bytes,
                grad_bytes=held.grad_bytes,
                state_bytes=kept * sum(align(_FLOAT * count) for count in trained),
                buffer_bytes=sum(align(buffer.nbytes) for buffer in layer.buffers()),
                update_peak_bytes=0,
                update_device=NO_TIME,
                update_host=NO_TIME,
                norm=NO_TIME if waits and trained else None,
                costs=(),
            ),
            sum(trained),
        )
