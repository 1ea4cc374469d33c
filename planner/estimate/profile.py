"""A profile from formulas, before anything was measured: will it fit, how fast, on which GPU?

Times are those of `times`; kernels, bytes and parameters those of `layers`.
Parameters and gradients take 4 bytes in fp32 and tf32, 2 in bf16 and fp16, where the state has an
fp32 master copy besides; moments are fp32 always.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from msgspec import structs

from planner.estimate.gpus import GPUS, Dtype, Gpu
from planner.estimate.kernels import FLOAT, Size
from planner.estimate.layers import LayerWork, chain, parameters
from planner.estimate.lengths import Lengths, by_tokens, in_words, sizes_of, step_us
from planner.estimate.models import MODELS, Model
from planner.estimate.times import kernels_us, machine, time_of, update_times
from profiles import schema
from profiles.codec import align, sha256
from profiles.errors import FormatError
from profiles.schema import BatchCost, LayerCost, Profile
from profiles.units import microbatch_sizes, show_bytes, show_us

NUMBER: dict[Dtype, int] = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
"""Bytes of a parameter; tf32 are fp32 numbers whose products run on tensor cores."""

MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""fp32 tensors of state per parameter tensor, beside a master copy."""

MOST_TOKENS = 1 << 28  # in a batch: keeps every figure within what the format holds


@dataclass(frozen=True, slots=True)
class Spec:
    """A model, a GPU and a batch to estimate.

    None: the model's own sequence length, microbatches of all sizes that make a difference, the
    best numbers that the GPU has, its memory and its typical host's.
    """

    model: str
    gpu: str
    batch: int
    sequence: int | None = None
    microbatches: tuple[int, ...] | None = None
    optimizer: str = "adamw"
    dtype: Dtype | None = None
    steps: int = 1000
    device_bytes: int | None = None
    host_bytes: int | None = None


def estimate(
    spec: Spec, models: Mapping[str, Model] = MODELS, lengths: Lengths | None = None
) -> Profile:
    """A sound profile of one task on one GPU, marked estimated, of one of these models.

    lengths: the tokens of every sample, None where all are alike. FormatError for bad arguments.
    """
    full = _complete(spec, models)
    model, gpu = models[full.model], GPUS[full.gpu]
    tokens, number = full.sequence or model.sequence, NUMBER[full.dtype or gpu.best]
    arguments = {name: str(value) for name, value in asdict(full).items()}
    if lengths is None:
        sizes = {m: Size(model, m, tokens, number) for m in full.microbatches or ()}
    else:
        _by_lengths(spec, lengths)
        sizes = {size.tokens: size for size in sizes_of(model, lengths, number)}
        arguments |= {"sequence": "by lengths", "microbatches": "by lengths"}
        arguments["lengths"] = sha256(lengths.data)
    canonical = json.dumps(arguments, sort_keys=True)
    task = schema.Task(
        name=full.model.replace(".", "_"),
        workload=schema.Workload(f"estimate:{full.model}", sha256(canonical.encode())),
        steps=full.steps,
        batch=full.batch,
        optimizer=full.optimizer,
        precision="bf16" if full.dtype == "bf16" else "fp32",
        batches=tuple(
            BatchCost(m, align(z.input_bytes) + align(z.target_bytes)) for m, z in sizes.items()
        ),
        layers=_layers(sizes, full, gpu),
    )
    if lengths is not None:
        task = by_tokens(task, lengths)
    return Profile(
        machine=machine(gpu, full.device_bytes, full.host_bytes, casts=full.dtype == "bf16"),
        tasks=(task,),
        estimated=True,
        provenance=arguments | {"head": "not tied to the embedding", "source": "planner estimate"},
    )


def _by_lengths(spec: Spec, lengths: Lengths) -> None:
    """FormatError for what does not go with lengths of samples."""
    for flag, value in (("seq", spec.sequence), ("microbatch", spec.microbatches)):
        if value is not None:
            raise FormatError(f"--{flag} does not go with --lengths, which says it; leave it out")
    if spec.model in MODELS and MODELS[spec.model].family == "vit":
        raise FormatError(f"{spec.model} sees images of one size; leave out --lengths")
    if spec.batch > len(lengths):
        raise FormatError(
            f"a step has {spec.batch} samples, but there are only {len(lengths)} lengths; lower "
            "--batch or give more of them"
        )


def describe(profile: Profile, lengths: Lengths | None = None) -> str:
    """An estimated profile in a few words: what the models take, and how long they compute.
    lengths: of the samples of its one task, where they have some."""
    return "\n".join(_described(profile, task, lengths) for task in profile.tasks)


def _described(profile: Profile, task: schema.Task, lengths: Lengths | None) -> str:
    (device,) = profile.machine.devices
    taken = ", ".join(
        f"{name} {show_bytes(sum(getattr(layer, f'{field}_bytes') for layer in task.layers))}"
        for name, field in (("parameters", "param"), ("gradients", "grad"), ("state", "state"))
    )
    known = MODELS.get(profile.provenance.get("model", ""))
    name = task.name if known is None else task.workload.ref
    count = f"{parameters(known) / 1e9:.2f} billion parameters in " if known else ""
    if lengths is None:
        costs = [layer.costs[-1] for layer in task.layers]
        sides = [sum(getattr(c, op).median_us for c in costs) for op in ("forward", "backward")]
        times = [us * (task.batch // costs[0].microbatch) for us in sides]
        samples, left_out = f"a batch of {task.batch}", ""
    else:
        times = step_us(task.layers, lengths, task.batch)
        samples, left_out = f"{in_words(lengths)}\na step of {task.batch} samples", "padding, "
    forward, backward = map(show_us, times)
    return (
        f"{name} on {device.name}, estimated: {count}{profile.provenance['dtype']}\n"
        f"{taken}; {device.name} offers {show_bytes(device.usable_bytes)}\n"
        f"{samples}: forward {forward}, backward {backward}, without {left_out}recomputation and "
        "copies"
    )


def _complete(spec: Spec, models: Mapping[str, Model]) -> Spec:
    """The spec with every None filled in; FormatError for what does not go together."""
    for kind, name, known in (
        ("model", spec.model, models),
        ("GPU", spec.gpu, GPUS),
        ("optimizer", spec.optimizer, MOMENTS),
    ):
        if name not in known:
            raise FormatError(f"{kind} {name!r} is not known; there are {', '.join(known)}")
    model, gpu = models[spec.model], GPUS[spec.gpu]
    dtype = spec.dtype or gpu.best
    if dtype not in gpu.peak:
        has = " and ".join(gpu.peak)
        raise FormatError(
            f"{gpu.name} has no {dtype}; it has {has}: give one of them as --dtype, or none"
        )
    sequence = _sequence(model, spec.sequence)
    sizes = spec.microbatches or microbatch_sizes(spec.batch)
    for m in sizes:
        if m < 1 or spec.batch % m:
            raise FormatError(f"microbatch {m} does not divide the batch of {spec.batch}")
    if spec.batch * sequence > MOST_TOKENS:
        raise FormatError(
            f"a batch of {spec.batch} x {sequence} tokens is more than {MOST_TOKENS}; "
            "lower --batch or --seq"
        )
    return replace(
        spec,
        dtype=dtype,
        sequence=sequence,
        microbatches=tuple(sorted(set(sizes))),
        device_bytes=spec.device_bytes or gpu.usable_bytes,
        host_bytes=spec.host_bytes or gpu.host_bytes,
    )


def _sequence(model: Model, asked: int | None) -> int:
    """Tokens of a sample: those asked for, if the model can take so many."""
    if asked is None or asked == model.sequence:
        return model.sequence
    if model.family == "vit":
        raise FormatError(
            f"{model.name} sees {model.sequence} tokens (224 pixels in patches of {model.patch}), "
            f"not {asked}; leave out --seq"
        )
    if model.positions and asked > model.positions:
        raise FormatError(f"{model.name} has {model.positions} positions, not {asked}; lower --seq")
    return asked


def _layers(sizes: Mapping[int, Size], full: Spec, gpu: Gpu) -> tuple[schema.Layer, ...]:
    """The embedding, equal blocks, and the head with the loss, at each size of a microbatch."""
    works = zip(*map(chain, sizes.values()), strict=True)
    embedding, block, head = (
        _layer(kind, dict(zip(sizes, done, strict=True)), sizes, full, gpu)
        for kind, done in zip(("embedding", "block", "head"), works, strict=True)
    )
    blocks = range(next(iter(sizes.values())).model.blocks)
    return (embedding, *(structs.replace(block, name=f"block{n}") for n in blocks), head)


def _layer(
    kind: str, works: Mapping[int, LayerWork], sizes: Mapping[int, Size], full: Spec, gpu: Gpu
) -> schema.Layer:
    dtype = full.dtype or gpu.best
    number, moments = NUMBER[dtype], MOMENTS[full.optimizer]
    states = moments + (number < FLOAT)  # a master copy of what is not fp32
    tensors = next(iter(works.values())).tensors
    params = sum(align(number * count) for count in tensors)
    on_device, on_host = update_times(sum(tensors), moments, gpu)
    return schema.Layer(
        name=kind,
        param_bytes=params,
        grad_bytes=params,
        state_bytes=states * sum(align(FLOAT * count) for count in tensors),
        buffer_bytes=0,
        update_peak_bytes=0,  # one fused pass, in place
        update_device=on_device,
        update_host=on_host,
        costs=tuple(_cost(kind, m, sizes[m], done, dtype, gpu) for m, done in works.items()),
    )


def _cost(kind: str, number: int, z: Size, done: LayerWork, dtype: Dtype, gpu: Gpu) -> LayerCost:
    forward = kernels_us(done.forward, dtype, gpu)
    backward, later = (kernels_us(part, dtype, gpu) for part in (done.backward, done.later))
    splits = done.later and kind != "embedding"  # which has no input to make gradients of
    given = z.input_bytes if kind == "embedding" else z.of(z.model.width)
    output = align(done.output)
    # The head's output is gone once the loss is there.
    left = 0 if kind == "head" else output
    most = done.kept_bytes + output + align(done.backward_extra)
    return LayerCost(
        microbatch=number,
        in_bytes=align(given),
        out_bytes=output,
        saved_bytes=done.kept_bytes + left,
        forward_peak_bytes=align(done.forward_peak),
        backward_peak_bytes=most,
        rng_draws=0,
        forward=time_of(forward),
        recompute_backward=time_of(forward + backward),
        backward=time_of(backward),
        offload_bytes=done.kept_bytes,
        backward_input=time_of(backward - later) if splits else None,
        backward_weight=time_of(later) if splits else None,
        left_bytes=done.left_bytes if splits else None,
        kept_grad_bytes=done.kept_grad_bytes if splits else None,
        input_peak_bytes=most + done.kept_grad_bytes if splits else None,
    )
