"""Samples of every length with what any task can be asked for: clipping, precisions, and many
microbatches. A run trains the bits of a loop without Gantry in the same microbatches."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.same import same
from support.texted import MADE, MOST, Packed, Text, as_packed, one_by_one, packed, trained
from torch import Tensor

from executor import run
from executor.records import Options, Result

KINDS = ((MOST, MOST), (256, MOST), (MOST,))
RUNS = ((0, 1), (2, 1), (1, 1), (0, 2), (1, 1))


def loud(outputs: Tensor, targets: Tensor) -> Tensor:
    return 40 * F.cross_entropy(outputs, targets, reduction="sum")


def ran(made: Packed) -> Result:
    return run(made.plan, [made.task], Options(tables=made.path))


def params(result: Result) -> dict[str, Any]:
    return {name: p.detach() for name, p in result.model("a").named_parameters()}


def assert_bits(made: Packed) -> Result:
    """Losses and parameters are those of the loop."""
    result, expected = ran(made), trained(made.task, partial(as_packed, made))
    assert result.losses["a"] == expected.losses
    assert same(params(result), expected.params)
    return result


@pytest.mark.parametrize("name", ["norms-host", "norms-device", "norms-devices"])
def test_gradients_are_clipped_by_the_norm_of_the_whole_step(name: str) -> None:
    """Of all microbatches, however many a step has; without clipping other numbers come out."""
    made = packed(name, KINDS, RUNS, clip=0.2)
    result = assert_bits(made)
    expected = trained(made.task, one_by_one)
    torch.testing.assert_close(result.losses["a"], expected.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(params(result), expected.params, rtol=1e-6, atol=1e-9)
    free = made._replace(task=made.task.__class__(**vars(made.task) | {"clip": None}))
    assert trained(free.task, partial(as_packed, made)).losses != result.losses["a"]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *[("norms-host", "fp16-autocast"), ("norms-devices", "fp16-autocast")],
        *[("streamed", "bf16"), ("saved", "bf16"), ("pipeline", "bf16"), ("norms-host", "bf16")],
        *[("packed", "bf16-autocast"), ("pipeline", "bf16-autocast")],
    ],
)
def test_every_precision_has_the_bits_of_the_loop(name: str, precision: str) -> None:
    """Of masters, and of a scale that falls until the gradients of a whole step are finite."""
    layers = MADE[name]().tasks[0].shards[-1].end_layer
    more = {"clip": 0.2} if name.startswith("norms") else {}
    model = partial(Text, layers, dtype=torch.float32)
    result = assert_bits(
        packed(name, KINDS, RUNS, model=model, loss=loud, precision=precision, **more)
    )
    if precision == "fp16-autocast":
        assert result.store.at_hand("a").loss_scale["scale"] < 1 << 15


def test_many_microbatches_add_up_to_one_step() -> None:
    """Twelve in one kind and few in another: most have one sample or only padding."""
    kinds = ((256,) * 12, (256,) * 5, (MOST,) * 3)
    made = packed("many", kinds, ((0, 2), (1, 1), (2, 1), (0, 1)))
    expected, result = trained(made.task, one_by_one), assert_bits(made)
    torch.testing.assert_close(result.losses["a"], expected.losses, rtol=1e-6, atol=0)
