"""Estimated profiles: bytes and times against formulas and public measurements."""

import json
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from support import timetables

from planner.charts import gantt
from planner.cli import parser
from planner.estimate.gpus import BANDWIDTH, CAST_BANDWIDTH, CAST_PIECE, GPUS, Dtype
from planner.estimate.kernels import Size
from planner.estimate.layers import LayerWork, chain, parameters
from planner.estimate.models import MODELS
from planner.estimate.profile import MOMENTS, NUMBER, Spec, estimate
from planner.estimate.profile import describe as told
from planner.views import compare, table
from planner.views.show import describe
from profiles import loads, violations
from profiles.codec import ALIGNMENT, pretty
from profiles.errors import FormatError
from profiles.schema import Layer, LayerCost, Task

MEASURED = json.loads((Path(__file__).parents[2] / "data" / "measured_layers.json").read_text())


def task_of(spec: Spec) -> Task:
    return estimate(spec).tasks[0]


def block_of(spec: Spec) -> Layer:
    return task_of(spec).layers[1]


def cost_of(layer: Layer, microbatch: int) -> LayerCost:
    return next(cost for cost in layer.costs if cost.microbatch == microbatch)


# Every model and every GPU once at least.
PAIRS = [*zip(MODELS, cycle(GPUS), strict=False), *zip(cycle(MODELS), GPUS, strict=False)]


def varied(spec: Spec, changed: dict[str, object]) -> Spec:
    values = {name: getattr(spec, name) for name in Spec.__slots__}
    return Spec(**(values | changed))


def works(model: str) -> list[LayerWork]:
    """Each layer of a model, for one sample."""
    size = Size(MODELS[model], 1, MODELS[model].sequence, 4)
    embedding, block, head = chain(size)
    return [embedding, *[block] * size.model.blocks, head]


def dtype_of(gpu: str) -> str:
    return "bf16" if "bf16" in GPUS[gpu].peak else "fp32"


@pytest.mark.parametrize(("model", "gpu"), PAIRS)
def test_every_model_on_every_gpu_is_a_sound_profile(model: str, gpu: str) -> None:
    """It passes the semantic check, is marked, and no peak is below what it contains."""
    made = estimate(Spec(model, gpu, 4, microbatches=(1, 4), dtype=dtype_of(gpu)))
    assert violations(made) == []
    assert made.estimated
    for layer in made.tasks[0].layers:
        for cost in layer.costs:
            assert cost.backward_peak_bytes >= cost.forward_peak_bytes >= cost.out_bytes > 0
            assert cost.backward_peak_bytes >= cost.saved_bytes >= (cost.offload_bytes or 0)
            assert cost.recompute_backward.median_us == pytest.approx(
                cost.forward.median_us + cost.backward.median_us, abs=1
            )


@settings(max_examples=10)
@given(
    model=st.sampled_from(sorted(MODELS)),
    gpu=st.sampled_from(sorted(GPUS)),
    power=st.integers(0, 5),
    shorter=st.integers(1, 511),
)
def test_more_samples_or_tokens_never_cost_less(
    model: str, gpu: str, power: int, shorter: int
) -> None:
    """Time and bytes of every layer grow with the microbatch, and with the sequence."""
    small, large = 1 << power, 2 << power
    spec = Spec(model, gpu, large, microbatches=(small, large), dtype=dtype_of(gpu))  # type: ignore[arg-type]
    pairs = [(layer.costs[0], layer.costs[1]) for layer in task_of(spec).layers[-2:]]
    if MODELS[model].family != "vit":
        short, full = (
            task_of(Spec(model, gpu, large, s, (large,), dtype=spec.dtype)) for s in (shorter, 512)
        )
        pairs += [(a.costs[0], b.costs[0]) for a, b in zip(short.layers, full.layers, strict=True)]
    for less, more in pairs:
        for name in ("in", "out", "saved", "forward_peak", "backward_peak", "offload"):
            assert getattr(less, f"{name}_bytes") <= getattr(more, f"{name}_bytes")
        assert less.forward.median_us <= more.forward.median_us
        assert less.backward.median_us <= more.backward.median_us


@pytest.mark.parametrize("dtype", NUMBER)
@pytest.mark.parametrize("optimizer", MOMENTS)
def test_state_is_fp32_moments_and_a_master_copy(optimizer: str, dtype: str) -> None:
    """Per parameter 4 bytes a moment, and 4 for a master where parameters have only 2."""
    task = task_of(Spec("gpt2-medium", "h100", 1, optimizer=optimizer, dtype=dtype))  # type: ignore[arg-type]
    number = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}[dtype]
    tensors = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[optimizer] + (number == 2)
    count = parameters(MODELS["gpt2-medium"])
    padding = 2 * ALIGNMENT * sum(len(layer.tensors) for layer in works("gpt2-medium"))
    params = sum(layer.param_bytes for layer in task.layers)
    assert params == sum(layer.grad_bytes for layer in task.layers)
    assert 0 <= params - number * count < padding
    assert 0 <= sum(layer.state_bytes for layer in task.layers) - 4 * tensors * count <= padding


def test_the_loss_holds_the_logits_in_fp32() -> None:
    """The head keeps 4 bytes per token and word in bf16 as well, and needs 14 at its peak."""
    cost = cost_of(task_of(Spec("gpt2", "a100-40", 8)).layers[-1], 8)
    words = 8 * 1024 * 50257
    assert cost.saved_bytes == pytest.approx(4 * words, rel=0.01)
    assert cost.backward_peak_bytes == pytest.approx(14 * words, rel=0.01)


def test_the_host_casts_at_a_part_of_its_bandwidth() -> None:
    """Six bytes of memory for each parameter of two, in bf16 alone, whose tasks say so."""
    made = estimate(Spec("gpt2", "4090", 1))
    links = {link.kind: link.both for link in made.machine.devices[0].links}
    assert made.tasks[0].precision == "bf16"
    assert 3 * links["cast"].bytes_per_s == pytest.approx(83.2e9 * CAST_BANDWIDTH)
    assert links["cast"].latency_us == pytest.approx(
        CAST_PIECE / links["cast"].bytes_per_s * 1e6, 1
    )
    other = estimate(Spec("gpt2", "4090", 1, dtype="tf32"))
    assert other.tasks[0].precision == "fp32"
    assert "cast" not in {link.kind for link in other.machine.devices[0].links}


def test_measured_bert_layers_take_up_to_a_quarter_longer() -> None:
    """1080 Ti, fp32, from 8 samples on: theirs has scores and dropout in memory besides."""
    spec = Spec("bert-large", "1080ti", 32, dtype="fp32")
    block, measured = block_of(spec), MEASURED["bert_1080ti"]
    for m in (8, 16, 32):
        cost = cost_of(block, m)
        forward = measured["forward_us"][str(m)] / cost.forward.median_us
        both = measured["recompute_backward_us"][str(m)] / cost.recompute_backward.median_us
        assert 1 <= forward <= 1.25
        assert 1 <= both <= 1.25


def test_measured_gpt_neo_layers_take_as_long_with_the_scores_counted() -> None:
    """Grace-Hopper: between fp32 and tf32; near tf32 once its unfused attention is added.

    Theirs writes the s x s scores, masks them, takes the softmax and multiplies by the values, in
    passes over memory: 6 at least.
    """
    measured, neo = MEASURED["gpt_neo_gh96"], "gpt3-2.7b"
    tensor_cores = block_of(Spec(neo, "gh200", 32, dtype="tf32"))
    plain = block_of(Spec(neo, "gh200", 32, dtype="fp32"))
    assert tensor_cores.param_bytes == pytest.approx(measured["param_bytes"], rel=1e-4)
    for m in (1, 4, 16, 32):
        forward, backward = (measured[f"{way}_us"][str(m)] for way in ("forward", "backward"))
        fast, slow = cost_of(tensor_cores, m), cost_of(plain, m)
        assert fast.forward.median_us < forward < slow.forward.median_us
        assert fast.backward.median_us < backward < slow.backward.median_us
        scores = 6 * m * measured["score_bytes_per_sample"]
        explained = fast.forward.median_us + scores / (4e12 * BANDWIDTH) * 1e6
        ratios = (
            forward / fast.forward.median_us,
            backward / fast.backward.median_us,
            forward / explained,
        )
        assert ratios[0] <= 1.9
        assert ratios[1] <= 2.4
        assert 0.8 <= ratios[2] <= 1.3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpu": "k80", "dtype": "bf16"}, "k80 has no bf16; it has fp32"),
        ({"gpu": "v100-16", "dtype": "bf16"}, "v100-16 has no bf16; it has fp32 and fp16"),
        ({"model": "gpt5"}, "'gpt5' is not known; there are gpt2"),
        ({"gpu": "a100"}, "'a100' is not known; there are k80"),
        ({"optimizer": "lion"}, "'lion' is not known; there are sgd"),
        ({"microbatches": (3,)}, "microbatch 3 does not divide the batch of 16"),
        ({"sequence": 1025}, "gpt2 has 1024 positions, not 1025"),
        ({"model": "vit-h", "sequence": 256}, "vit-h sees 257 tokens"),
        ({"batch": 1 << 20}, "lower --batch or --seq"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    changed: dict[str, object], words: str
) -> None:
    """One line that names what is there and what would do, with the code of bad usage."""
    with pytest.raises(FormatError, match=words) as caught:
        estimate(varied(Spec("gpt2", "a100-40", 16), changed))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("1080ti", "fp32"), ("v100-16", "fp16"), ("4090", "bf16"), ("h100", "bf16")]
)
def test_numbers_are_the_best_that_the_gpu_has_by_default(gpu: str, dtype: Dtype) -> None:
    """Every GPU has a profile without --dtype, the same as with its best, which it names."""
    made = estimate(Spec("bert-base", gpu, 8))
    assert made == estimate(Spec("bert-base", gpu, 8, dtype=dtype))
    assert f"parameters in {dtype}" in told(made)


def test_the_workload_is_named_and_hashed_by_all_arguments() -> None:
    """Equal arguments, equal file; another argument, another hash; defaults count as given."""
    spec = Spec("gpt2-xl", "a100-40", 16)
    assert pretty(estimate(spec)) == pretty(estimate(spec))
    first = task_of(spec).workload
    assert first.ref == "estimate:gpt2-xl"
    assert task_of(varied(spec, {"sequence": 1024})).workload == first
    for other in ({"steps": 7}, {"gpu": "h100"}, {"optimizer": "sgd"}, {"host_bytes": 1 << 40}):
        assert task_of(varied(spec, other)).workload.sha256 != first.sha256


def test_the_command_writes_the_profile_and_says_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is what `estimate` gives for the same arguments, budgets included."""
    path = tmp_path / "x.json"
    given = "gpt3-2.7b --gpu h100 --batch 8 --seq 1024 --microbatch 2,8 --optimizer momentum"
    sizes = "--dtype fp16 --steps 5 --device-memory 24GiB --host-memory 1TiB"
    assert parser.main(["estimate", *given.split(), *sizes.split(), "-o", str(path)]) == 0
    assert "estimated" in capsys.readouterr().out
    spec = Spec("gpt3-2.7b", "h100", 8, 1024, (2, 8), "momentum", "fp16", 5, 24 << 30, 1 << 40)
    made = loads(path.read_bytes())
    assert made == estimate(spec)
    assert made.machine.devices[0].usable_bytes == 24 << 30
    assert made.machine.host.usable_bytes == 1 << 40


@pytest.mark.parametrize("estimated", [False, True])
def test_plans_with_estimated_times_are_called_so(estimated: bool) -> None:
    """In words, in the comparison, and on every panel of planned times, but not of a run's."""
    plan = structs.replace(timetables.plan(rounds=6), estimated=estimated)
    log = timetables.log(plan)
    assert ("estimated" in describe(plan).splitlines()[0]) is estimated
    assert (
        "estimates" in table(compare(plan, log, timetables.PLAN_SHA256)).splitlines()[0]
    ) is estimated
    titles = [ax.get_title(loc="left") for ax in gantt.figure(plan, log).axes]
    assert ["estimated" in title for title in titles] == [estimated, False] * 2


def test_both_parts_of_a_backward_take_as_long_as_the_whole() -> None:
    """Of all layers but the first, which has no gradient of its input to make."""
    profile = estimate(Spec("gpt2", "4090", batch=4, microbatches=(2,)))
    first, *others = (layer.costs[0] for layer in profile.tasks[0].layers)
    assert (first.backward_input, first.backward_weight, first.left_bytes) == (None, None, None)
    for cost in others:
        assert cost.backward_input
        assert cost.backward_weight
        assert cost.left_bytes
        both = cost.backward_input.median_us + cost.backward_weight.median_us
        assert abs(both - cost.backward.median_us) <= 1
        assert 0 < cost.left_bytes <= cost.backward_peak_bytes
